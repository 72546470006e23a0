"""What `/metrics` shows, family by family; the golden file is changed by `make golden` only and reviewed as text."""

import gzip
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter import exposition
from exporter.exposition import SECTIONS
from exporter.exposition.family import Facts, Family, Kind, Sample
from exporter.exposition.own import OwnMetrics, Totals
from exporter.exposition.renderer import CACHE_LIMIT, Renderer, page
from exporter.readings import DriverState, GpuStatus, PodMapping
from tests.rig.exposition_world import a_busy_gpu, some_facts
from tests.rig.promtool import check_metrics
from tests.rig.readings_world import a_gpu, a_snapshot, uuid

GOLDEN = Path(__file__).parent / "golden" / "h100x2.prom"
FAMILIES = [family for _, families in SECTIONS for family in families]


def rendered(facts: Facts) -> str:
    renderer = Renderer()
    return "".join(renderer.render(families, facts) for _, families in SECTIONS)


def values(text: str) -> dict[str, float]:
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


def test_golden() -> None:
    text = rendered(some_facts())
    if os.environ.get("GPUWARD_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.prometheus
def test_promtool_has_no_complaint() -> None:
    check_metrics(rendered(some_facts()) + OwnMetrics("1").text())


def test_an_independent_parser_reads_the_same() -> None:
    parsed = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(rendered(some_facts()))
        for sample in family.samples
    }
    assert parsed["gpu_temperature_celsius", (uuid(0),)] == 61
    assert parsed["gpu_power_watts", (uuid(0),)] == 612.345
    assert ("gpu_allocation_info", ("", "ml", 'odd"name', "main", "nvidia.com/gpu", "GPU-elsewhere")) in parsed


def test_every_family_file_is_registered() -> None:
    folder = Path(exposition.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if "FAMILIES = (" in path.read_text()}
    assert files == {name for name, _ in SECTIONS}


def test_names_are_unique_and_have_the_prefix() -> None:
    assert [name for name, times in Counter(family.name for family in FAMILIES).items() if times > 1] == []
    assert all(re.fullmatch(r"(gpu|gpuward_exporter)_[a-z0-9_]+", family.name) for family in FAMILIES)


@pytest.mark.parametrize("family", [pytest.param(family, id=family.name) for family in FAMILIES])
def test_names_end_as_prometheus_wants(family: Family) -> None:
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    if family.unit:
        assert family.name.removesuffix("_total").endswith(f"_{family.unit}")
    assert family.help.endswith(".")
    assert "gpu" not in family.labels or family.labels[0] == "gpu"


def test_a_reading_that_is_not_there_is_absent_and_never_zero() -> None:
    bare = a_gpu(0, row_remap=None, recovery_action=None)
    names = {series.partition("{")[0] for series in values(rendered(some_facts(a_snapshot(bare))))}
    assert {"gpu_info", "gpu_up", "gpu_health", "gpu_mapping_known"} <= names
    absent = {"gpu_utilization_ratio", "gpu_power_watts", "gpu_ecc_mode", "gpu_nvlink_links", "gpu_row_remap_pending"}
    assert not absent & names
    assert not {name for name in names if name.startswith(("gpu_clock", "gpu_pcie", "gpu_memory", "gpu_temperature"))}


@pytest.mark.parametrize("status", [GpuStatus.LOST, GpuStatus.HUNG, GpuStatus.MISSING, GpuStatus.FAILED])
def test_a_gpu_that_does_not_answer_shows_identity_and_health_only(status: GpuStatus) -> None:
    # The readers empty the readings of such a GPU; here they are left, to see that nothing old is shown.
    facts = some_facts(a_snapshot(replace(a_busy_gpu(0), status=status)))
    shown = {s.partition("{")[0] for s in values(rendered(facts)) if uuid(0) in s}
    allowed = {"gpu_info", "gpu_mig_info", "gpu_up", "gpu_snapshot_age_seconds", "gpu_health", "gpu_finding"}
    # How long its last sweep took is about us, and who holds it is the kubelet's word.
    assert shown - allowed <= {"gpu_allocation_info", "gpuward_exporter_sweep_duration_seconds"}
    assert values(rendered(facts))[f'gpu_up{{gpu="{uuid(0)}"}}'] == 0


def test_ratios_stay_between_zero_and_one() -> None:
    gpus = (a_gpu(0, utilization_ratio=1.01), a_gpu(1, utilization_ratio=-0.5))
    text = values(rendered(some_facts(a_snapshot(*gpus))))
    assert [text[f'gpu_utilization_ratio{{gpu="{uuid(i)}"}}'] for i in (0, 1)] == [1, 0]


def test_an_unknown_mapping_is_said_and_shows_no_allocation() -> None:
    text = values(rendered(some_facts(mapping=PodMapping(known=False, reason="timeout"))))
    assert text["gpu_mapping_known"] == 0
    assert not [series for series in text if series.startswith(("gpu_allocation_info", "gpu_allocatable"))]


def test_exactly_one_health_and_one_driver_state_holds() -> None:
    text = values(rendered(some_facts()))
    for prefix in (
        f'gpu_health{{gpu="{uuid(0)}"',
        f'gpu_health{{gpu="{uuid(1)}"',
        "gpu_node_health{",
        "gpu_driver_state{",
    ):
        assert sum(value for series, value in text.items() if series.startswith(prefix)) == 1, prefix


def test_no_driver_is_a_state_and_not_an_error() -> None:
    snapshot = a_snapshot(driver_state=DriverState.LIBRARY_MISSING, driver=None, enumerated=0)
    text = values(rendered(some_facts(replace(snapshot, gpus=()))))
    assert text['gpu_driver_state{state="library-missing"}'] == 1
    assert not [series for series in text if series.startswith("gpu_driver_info")]


def family(*samples: Sample, labels: tuple[str, ...] = ("gpu",)) -> Family:
    def given(_: Facts) -> Iterator[Sample]:
        yield from samples

    return Family(name="gpu_test", help="A test\nof two lines with a \\.", labels=labels, samples=given)


def test_a_repeated_label_set_and_a_value_that_is_no_number_are_dropped_and_counted() -> None:
    renderer = Renderer()
    text = renderer.render([family((("a",), 1), (("a",), 2), (("b",), float("nan")), (("c",), 3))], some_facts())
    assert values(text) == {'gpu_test{gpu="a"}': 1, 'gpu_test{gpu="c"}': 3}
    assert renderer.dropped == 2


def test_text_is_escaped() -> None:
    text = Renderer().render([family((('a"\\\n',), 1))], some_facts())
    assert 'gpu_test{gpu="a\\"\\\\\\n"} 1\n' in text
    assert "# HELP gpu_test A test\\nof two lines with a \\\\.\n" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(True, "1", id="a truth is 1"),
        pytest.param(85520809984, "85520809984", id="bytes stay exact"),
        pytest.param(1.98e9, "1980000000", id="a whole float has no fraction"),
        pytest.param(0.1, "0.1", id="the shortest exact text"),
        pytest.param(1e300, "1e+300", id="huge floats keep their exponent"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert Renderer().render([family(((), value), labels=())], some_facts()).splitlines()[-1] == f"gpu_test {text}"


def test_memory_is_bounded_when_pods_come_and_go() -> None:
    renderer = Renderer()
    for turn in range(3):
        samples: list[Sample] = [((f"{turn}-{pod}",), 1) for pod in range(CACHE_LIMIT)]
        text = renderer.render([family(*samples)], some_facts())
        assert text.count("\n") == CACHE_LIMIT + 2
    assert len(renderer._prefixes) <= 2 * CACHE_LIMIT


def test_a_page_is_the_same_text_twice() -> None:
    made = page(("gpu_up 1\n", "gpu_x 2\n"))
    assert gzip.decompress(made.zipped) == made.plain == b"gpu_up 1\ngpu_x 2\n"
    assert page(("gpu_up 1\n", "gpu_x 2\n")).zipped == made.zipped


class TestOwnMetrics:
    def test_a_source_has_one_state_at_a_time(self) -> None:
        own = OwnMetrics("1.2.3")
        own.state("pod-resources", "absent")
        own.state("pod-resources", "known")
        text = values(own.text())
        assert text['gpuward_exporter_source_state{source="pod-resources",state="absent"}'] == 0
        assert text['gpuward_exporter_source_state{source="pod-resources",state="known"}'] == 1
        assert text['gpuward_exporter_build_info{version="1.2.3"}'] == 1

    def test_failures_are_counted_from_zero(self) -> None:
        own = OwnMetrics("1")
        assert values(own.text())['gpuward_exporter_errors_total{part="state-file"}'] == 0
        own.failed("state-file")
        own.published("status", "failed")
        text = values(own.text())
        assert text['gpuward_exporter_errors_total{part="state-file"}'] == 1
        assert text['gpuward_exporter_publish_total{object="status",result="failed"}'] == 1

    def test_totals_of_other_parts_only_grow(self) -> None:
        own = OwnMetrics("1")
        own.rendering(now=1.0, age=None, totals=Totals(scrapes=3))
        own.rendering(now=2.0, age=0.5, totals=Totals(scrapes=5, dropped=1, lost=2))
        text = values(own.text())
        assert text["gpuward_exporter_scrapes_total"] == 5
        assert text["gpuward_exporter_samples_dropped_total"] == 1
        assert text["gpuward_exporter_events_lost_total"] == 2
        assert text["gpuward_exporter_snapshot_age_seconds"] == 0.5
