"""`gpu-exporter`: settings to parts, parts to a running exporter, signals to an orderly end."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from types import FrameType
from typing import Final

from exporter import logs, settings
from exporter.apiserver import ApiServer
from exporter.assess.limits import Limits
from exporter.cli_node import Node, real_node, simulated_node
from exporter.exposition.own import OwnMetrics
from exporter.health import keys
from exporter.logs import fields
from exporter.loop import Loop, LoopSettings, Outlets
from exporter.loop_inbox import Inbox, MappingPoller
from exporter.publisher import Publisher, PublisherSettings
from exporter.readers.host import HostUnreadable
from exporter.readers.kmsg import KmsgReader
from exporter.readers.podresources import PodResourcesClient
from exporter.readings import PodMapping
from exporter.sampler import Sampler, SamplerSettings
from exporter.server import Board, Server, ServerSettings
from exporter.settings import Settings
from exporter.settings_options import SettingsError
from exporter.state_file import Kept, StateFile

log = logging.getLogger(__name__)

MAPPING_SECONDS: Final = 5.0
LEAST_STALLED_SECONDS: Final = 30.0
ONCE_SECONDS: Final = 60.0
"""`--once` prints what there is after so long: a driver that does not answer is an answer too."""
ONCE_EXTRA_SECONDS: Final = 2.0
"""How long `--once` waits for the kernel log and the pod mapping when the GPUs are read."""
BACKLOG_SECONDS: Final = 0.3
"""The kernel log is `ok` when it is open; what stands in it follows within a read or two."""
POLL_SECONDS: Final = 0.02


def exporter_version() -> str:
    """Version of the installed package."""
    try:
        return version("gpuward")
    except PackageNotFoundError:
        return "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `gpu-exporter` command; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        chosen = settings.load(given, settings.environment(), exporter_version())
        logs.set_up(chosen.log_level, chosen.log_format)
        node = simulated_node(chosen) if chosen.simulate is not None else real_node(chosen)
    except SettingsError as wrong:
        print(f"gpu-exporter: {wrong}", file=sys.stderr)
        return 2
    try:
        exporter = Exporter(chosen, node)
        return exporter.once() if chosen.once else exporter.run()
    except (HostUnreadable, OSError, ValueError) as failed:
        # What can fail here is the boot id, the port, and a simulated node's file: nothing works without them.
        log.error("cannot start", extra=fields(error=failed))
        return 1
    finally:
        node.leave()


class Exporter:
    """All parts of one exporter, wired."""

    def __init__(self, chosen: Settings, node: Node) -> None:
        self._settings = chosen
        stalled = max(LEAST_STALLED_SECONDS, 3 * chosen.interval_seconds)
        self._inbox = Inbox()
        self._own = OwnMetrics(exporter_version())
        self._board = Board()
        life = timedelta(seconds=3 * chosen.interval_seconds)
        limits = Limits(expected_gpus=chosen.expected_gpus, reading_life=max(Limits().reading_life, life))
        # Another exporter may be running beside `--once`: the file is its.
        state_file = StateFile(node.state_file, limits, read_only=chosen.once)
        kept = state_file.load().of_boot(node.clock().boot_id)
        self._sampler = Sampler(_sampler_settings(chosen, node, kept), self._inbox.snapshot)
        self._kernel_log = KmsgReader(node.kmsg_path, node.clock, self._inbox.kernel_line, kept.kernel_log)
        self._mapping = MappingPoller(
            PodResourcesClient(chosen.pod_resources_socket), MAPPING_SECONDS, self._receive_mapping
        )
        self._publisher = self._make_publisher(stalled)
        self._loop = Loop(
            LoopSettings(interval_seconds=chosen.interval_seconds, version=exporter_version()),
            self._inbox,
            Outlets(board=self._board, own=self._own, state_file=state_file, sink=self._publisher),
            kept,
            self._kernel_log,
        )
        server = ServerSettings(
            host=chosen.listen_host,
            port=chosen.listen_port,
            telemetry_path=chosen.telemetry_path,
            stalled_seconds=stalled,
        )
        self._server = Server(server, self._board, self._sampler.release)

    def _make_publisher(self, stalled_seconds: float) -> Publisher | None:
        chosen = self._settings
        if chosen.endpoint is None or chosen.once:
            return None
        api = ApiServer(chosen.endpoint, f"{keys.EXPORTER}/{exporter_version()}")
        names = PublisherSettings(
            node=chosen.node,
            namespace=chosen.namespace,
            lease_seconds=chosen.lease_seconds,
            stalled_seconds=stalled_seconds,
        )
        return Publisher(api, names, self._own)

    def _receive_mapping(self, mapping: PodMapping, seconds: float) -> None:
        self._own.collected("pod-resources", seconds, mapping.known)
        self._inbox.mapping(mapping)

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        name = died.thread.name if died.thread is not None else "a thread"
        self._own.failed(f"thread-{name}")
        self._board.dead_part = name
        log.error("a part has died", extra=fields(part=name), exc_info=died.exc_value)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        # A part that died of a bug of ours is counted, logged, and fails the liveness probe: never a silent half.
        threading.excepthook = self._thread_died
        ended = threading.Event()

        def end(number: int, _: FrameType | None) -> None:
            log.info("ending", extra=fields(signal=signal.Signals(number).name))
            ended.set()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        self._server.start()
        try:
            self._start_collecting()
            if self._publisher is not None:
                self._publisher.start()
            ended.wait()
        finally:
            if self._publisher is not None:
                self._publisher.stop()
            self._server.stop()
            self._stop_collecting()
        log.info("ended")
        return 0

    def once(self) -> int:
        """Print one exposition and end; status 0 also without a driver, for that is an answer."""
        self._start_collecting()
        try:
            self._wait_for(self._has_snapshot, ONCE_SECONDS)
            self._wait_for(self._heard_all, ONCE_EXTRA_SECONDS)
            time.sleep(BACKLOG_SECONDS)
            # Before the sources, for once: the page shows them at work, not as we stop them.
            self._loop.stop()
        finally:
            self._stop_collecting()
        if self._board.page is not None:
            sys.stdout.buffer.write(self._board.page.plain)
            sys.stdout.flush()
        return 0

    def _start_collecting(self) -> None:
        self._sampler.start()
        self._kernel_log.start()
        self._mapping.start()
        self._loop.start()

    def _stop_collecting(self) -> None:
        """Sources first: the loop's last turn takes and keeps what they still told."""
        self._kernel_log.stop()
        self._mapping.stop()
        self._sampler.stop()
        self._loop.stop()

    def _has_snapshot(self) -> bool:
        return self._board.status is not None

    def _heard_all(self) -> bool:
        return self._mapping.first.is_set() and self._kernel_log.status.word != "starting"

    def _wait_for(self, fact: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not fact() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _sampler_settings(chosen: Settings, node: Node, kept: Kept) -> SamplerSettings:
    return SamplerSettings(
        interval_seconds=chosen.interval_seconds,
        probe_timeout_seconds=chosen.probe_timeout_seconds,
        node=chosen.node,
        library_path=chosen.nvml_library,
        simulate_state_path=None if node.simulate_state_path is None else str(node.simulate_state_path),
        boot_id_path=str(node.boot_id_path),
        known_gpus=kept.gpus,
    )


if __name__ == "__main__":
    sys.exit(main())
