"""`gpu-remediator`: reads settings, runs one replica until told to stop.

Exit status: 0 after SIGTERM or SIGINT, 2 when settings or the policy file are wrong, 1 when it cannot start.
"""

import logging
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from remediator.adapters.errors import ApiError
from remediator.cli_program import Program
from remediator.domain.policy_errors import PolicyError
from remediator.domain.states import diagram
from remediator.logs import set_up
from remediator.settings import Settings, SettingsError, load

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    own_version = _version()
    try:
        command, settings = load(sys.argv[1:] if arguments is None else arguments, own_version)
    except SettingsError as error:
        sys.stderr.write(f"gpu-remediator: {error}\n")
        return 2
    if command == "states":
        sys.stdout.write(diagram())
        return 0
    set_up(settings.log_level, settings.log_format)
    return _run(settings, own_version)


def _run(settings: Settings, own_version: str) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.set())
    try:
        program = Program(settings, own_version)
    except PolicyError as error:
        for problem in error.problems:
            sys.stderr.write(f"gpu-remediator: {settings.config_file}: {problem}\n")
        return 2
    except (ApiError, OSError) as error:
        sys.stderr.write(f"gpu-remediator: cannot start: {error}\n")
        return 1
    log.info("starting version=%s identity=%s", own_version, settings.identity)
    program.start()
    # With a timeout, because a wait without one is not interrupted by signals on every platform.
    while not stopping.wait(1.0):
        pass
    log.info("stopping")
    program.stop()
    log.info("stopped")
    return 0


def _version() -> str:
    try:
        return version("gpuward")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
