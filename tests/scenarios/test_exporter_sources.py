"""The whole gpu-exporter: what kubelet and kernel tell it, what it keeps over restarts, how it starts and ends."""

import ctypes
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.readings import PodDevice
from exporter.simulation import state
from exporter.simulation.kubelet_socket import KubeletSocket, Mode
from tests.rig.exporter import PROGRAM, Exporter, Page
from tests.rig.waiting import eventually

GPU = "nvidia.com/gpu"


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    """An exporter of two T4, without a kubelet."""
    with Exporter(tmp_path, simulate="t4x2") as running:
        yield running


def held(pod: str, gpu: str, resource: str = GPU) -> PodDevice:
    return PodDevice(namespace="team-a", pod=pod, container="main", resource=resource, device_id=gpu)


def kubelet_of(exporter: Exporter) -> KubeletSocket:
    """A kubelet (not started) whose two GPUs may be given out, and one is."""
    kubelet, gpus = KubeletSocket(exporter.kubelet_socket), exporter.uuids()
    kubelet.set_pods([held("train-0", gpus[1])], [(GPU, gpu) for gpu in gpus])
    return kubelet


def known(page: Page) -> bool:
    return page.value("gpu_mapping_known") == 1


def test_allocations_are_exactly_those_of_the_kubelet(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path, simulate="t4x2")
    gpus = exporter.uuids()
    with kubelet_of(exporter) as kubelet:
        card = PodDevice(
            namespace="b", pod="net-0", container="main", resource="vendor.com/nic", device_id="0000:1a:0.1"
        )
        kubelet.set_pods([held("train-0", gpus[0]), held("infer-0", gpus[1]), card])
        with exporter:
            page = exporter.until("the mapping is known", known, 15.0)
            names = ("gpu", "namespace", "pod", "container", "resource", "device")
            shown = {tuple(each.labels[name] for name in names) for each in page.series("gpu_allocation_info")}
            assert shown == {
                (gpus[0], "team-a", "train-0", "main", GPU, gpus[0]),
                (gpus[1], "team-a", "infer-0", "main", GPU, gpus[1]),
            }
            assert page.value("gpu_allocatable", resource=GPU) == 2
            pods = {gpu["uuid"]: [pod["name"] for pod in gpu["pods"]] for gpu in exporter.health()["gpus"]}
            assert pods == {gpus[0]: ["train-0"], gpus[1]: ["infer-0"]}
            kubelet.set_pods([])
            page = exporter.until("the pods are gone", lambda page: not page.series("gpu_allocation_info"), 15.0)
            assert known(page)


BROKEN = {
    "removed": {"absent"},
    Mode.HANG: {"timeout"},
    Mode.GARBAGE: {"garbled"},
    # The noise begins like the head of a long frame: an HTTP/2 client may as well wait for the rest of it.
    Mode.NOISE: {"garbled", "timeout"},
    Mode.REFUSE: {"exhausted"},
}
"""What a kubelet can do, and the words for it."""


@pytest.mark.slow
def test_a_kubelet_that_does_not_answer_makes_the_mapping_unknown_and_never_empty(tmp_path: Path) -> None:
    """All of them at the same time: each case is waiting for the most part."""
    with ExitStack() as stack:
        exporters: dict[str, Exporter] = {}
        kubelets: dict[str, KubeletSocket] = {}
        for how in BROKEN:
            folder = tmp_path / how
            folder.mkdir()
            exporters[how] = Exporter(folder, simulate="t4x2", interval=2.0)
            kubelets[how] = stack.enter_context(kubelet_of(exporters[how]))
        for each in exporters.values():
            stack.enter_context(each)
        for each in exporters.values():
            each.until("the mapping is known", known, 15.0)
        break_all(kubelets)
        for how, each in exporters.items():
            page = each.until("the mapping is unknown", lambda page: not known(page), 20.0)
            assert page.series("gpu_allocation_info") == page.series("gpu_allocatable") == []
            assert each.health()["mappingKnown"] is False
            assert page.by("gpu", "gpu_up") == dict.fromkeys(each.uuids(), 1.0)
            (word,) = page.states("gpuward_exporter_source_state", source="pod-resources")
            assert word in BROKEN[how], how
        kubelets["removed"] = stack.enter_context(kubelet_of(exporters["removed"]))
        for how, each in exporters.items():
            kubelets[how].mode = Mode.NORMAL
            page = each.until("the mapping is known again", known, 20.0)
            assert [pod.labels["pod"] for pod in page.series("gpu_allocation_info")] == ["train-0"]
            assert each.health()["mappingKnown"] is True


def break_all(kubelets: Mapping[str, KubeletSocket]) -> None:
    """Break each as its name in `BROKEN` says."""
    for how, kubelet in kubelets.items():
        if how == "removed":
            kubelet.stop()
        else:
            kubelet.mode = Mode(how)


def xids(page: Page) -> dict[tuple[str, str], float]:
    return {(each.labels["gpu"], each.labels["xid"]): each.value for each in page.series("gpu_xid_errors_total")}


def test_an_xid_counts_once_though_nvml_and_the_kernel_log_both_tell_it(
    exporter: Exporter, record_property: Callable[[str, object], None]
) -> None:
    gpus = exporter.uuids()
    began = time.time()
    state.inject(exporter.silicon, 1, "xid:31")
    page = exporter.until("the Xid shows", xids, 10.0)
    record_property("seconds_until_an_xid_shows", round(time.time() - began, 2))
    assert began - 1 <= (page.value("gpu_xid_last_timestamp_seconds", gpu=gpus[1], xid="31") or 0) <= time.time()
    state.inject(exporter.silicon, 1, "xid:31")
    state.inject(exporter.silicon, 0, "xid:48")
    wanted = {(gpus[1], "31"): 2.0, (gpus[0], "48"): 1.0}
    exporter.until("all three are counted", lambda page: xids(page) == wanted, 10.0)
    time.sleep(2)  # the second witness is at most a second behind the first
    assert xids(exporter.page()) == wanted


def test_xid_counters_outlive_a_restart_and_not_a_reboot(tmp_path: Path) -> None:
    exporter = Exporter(tmp_path, simulate="t4x2")
    with exporter:
        gpu = exporter.uuids()[1]
        state.inject(exporter.silicon, 1, "xid:31")
        state.inject(exporter.silicon, 1, "xid:48")
        exporter.until("both are counted", lambda page: len(xids(page)) == 2, 10.0)
    state.inject(exporter.silicon, 1, "xid:31")
    with exporter:
        wanted = {(gpu, "31"): 2.0, (gpu, "48"): 1.0}
        exporter.until("what came meanwhile is in the kernel log", lambda page: xids(page) == wanted, 10.0)
        page = exporter.page()
        assert page.series("gpu_finding", gpu=gpu, code="xid-48")
        state.reboot(exporter.silicon)
        exporter.until("the reboot is seen", lambda page: xids(page) == {}, 15.0)
        state.inject(exporter.silicon, 1, "xid:31")
        exporter.until("the count starts anew", lambda page: xids(page) == {(gpu, "31"): 1.0}, 10.0)
    state.reboot(exporter.silicon)
    with exporter:
        assert xids(exporter.page()) == {}


@pytest.mark.parametrize("content", [b"{", b"\x00" * 4096, b"[]", b'{"ledger": {}, "xids": 3}'])
def test_a_corrupt_state_file_is_set_aside_and_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    with Exporter(tmp_path, simulate="t4x2") as exporter:
        assert (tmp_path / "state.json.corrupt").read_bytes() == content
        assert 'msg="state file is corrupt; starting anew"' in exporter.log()
        state.inject(exporter.silicon, 0, "xid:31")
        exporter.until("it works and keeps", xids, 10.0)
        eventually("a new file", lambda: "31" in exporter.state_file.read_text(), 5.0)


def test_a_disk_that_refuses_is_counted_and_hurts_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("")
    with Exporter(tmp_path, "--state.file", str(tmp_path / "state.json" / "below"), simulate="t4x2") as exporter:
        state.inject(exporter.silicon, 0, "xid:31")
        page = exporter.until("the Xid is counted", xids, 10.0)
        assert (page.value("gpuward_exporter_errors_total", part="state-file") or 0) > 0
        assert page.states("gpu_node_health") == {"Degraded"}


def test_a_node_without_a_driver_is_served_and_not_a_crash_loop(tmp_path: Path) -> None:
    flags = [] if not driver_here() else ["--nvml.library", str(tmp_path / "none.so")]
    log = tmp_path / "kmsg"
    log.write_text("")
    with Exporter(tmp_path, *flags, "--kmsg.path", str(log), simulate=None) as exporter:
        page = exporter.until(
            "the driver is missed", lambda page: page.states("gpu_driver_state") == {"library-missing"}, 10.0
        )
        time.sleep(2)
        page = exporter.page()
        assert page.value("gpuward_exporter_worker_restarts_total") == 0
        assert page.series("gpu_up") == []
        assert exporter.status("/-/healthy") == 200
        health = exporter.health()
        assert (health["driverState"], health["health"], health["gpus"]) == ("library-missing", "Unknown", [])


def driver_here() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_within_five_seconds_though_the_kubelet_hangs(tmp_path: Path, number: signal.Signals) -> None:
    exporter = Exporter(tmp_path, simulate="t4x2")
    with kubelet_of(exporter) as kubelet:
        kubelet.mode = Mode.HANG
        with exporter:
            assert kubelet.requests == 1
            exporter.process.send(number)
            assert exporter.process.wait(5.0) == 0


@pytest.mark.parametrize(
    ("flags", "named", "allowed"),
    [
        (["--interval", "never"], "--interval", "seconds from 0.1"),
        (["--interval", "0"], "--interval", "seconds from 0.1"),
        (["--probe.timeout", "-1"], "--probe.timeout", "seconds from"),
        (["--simulate", "h100"], "--simulate", "h100x8"),
        (["--simulate", "b300x8"], "--simulate", "h100"),
        (["--web.listen-address", "9451"], "--web.listen-address", "[HOST]:PORT"),
        (["--log.level", "loud"], "--log.level", "debug, info, warning, error"),
        (["--kube.publish", "on"], "--kube.publish", "--kube.api-server"),
        (["--config.file", "/nonexistent.yaml"], "--config.file", "YAML"),
        (["--intervall", "1"], "--intervall", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_ends_with_status_2_and_a_sentence_that_names_it(
    flags: list[str], named: str, allowed: str, tmp_path: Path
) -> None:
    ended = subprocess.run([PROGRAM, *flags], capture_output=True, text=True, timeout=20, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    sentence = ended.stderr.strip().splitlines()[-1]
    assert named in sentence and allowed in sentence
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_port_in_use_is_said_with_status_1(exporter: Exporter, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Exporter(tmp_path / "other", "--web.listen-address", exporter.target, simulate="t4x2")
    other.start()
    assert other.process.wait(20.0) == 1
    assert re.search(r'level=error .*msg="cannot start" .*address already in use', other.log(), re.IGNORECASE)
    assert exporter.status("/-/healthy") == 200
