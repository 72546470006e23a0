"""Health: what was judged, per GPU and for the node. Present for every GPU, whether it answers or not."""

from collections.abc import Iterator

from exporter.exposition.family import Facts, Family, Sample, reading
from exporter.health.vocabulary import Health
from exporter.readings import GpuStatus


def _up(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.snapshot.gpus:
        yield (gpu.identity.uuid,), int(gpu.status is GpuStatus.UP)


def _age(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.snapshot.gpus:
        # A wall clock set back must not show a negative age.
        yield (gpu.identity.uuid,), max(0.0, (facts.now - gpu.taken_at).total_seconds())


def _health(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.report.gpus:
        for state in Health:
            yield (gpu.uuid, state.value), int(gpu.health is state)


def _findings(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.report.gpus:
        for finding in gpu.findings:
            yield (gpu.uuid, finding.code, finding.severity.value), 1


def _node_health(facts: Facts) -> Iterator[Sample]:
    for state in Health:
        yield (state.value,), int(facts.report.health is state)


def _node_findings(facts: Facts) -> Iterator[Sample]:
    for finding in facts.report.findings:
        yield (finding.code, finding.severity.value), 1


FAMILIES = (
    Family(name="gpu_up", help="1 = the GPU answered in the last sweep.", samples=_up),
    Family(
        name="gpu_snapshot_age_seconds",
        help="Time since this GPU last answered, or since its silence was noticed.",
        unit="seconds",
        samples=_age,
    ),
    Family(
        name="gpu_recovery_action",
        help="What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, "
        "5 IMEX, 6 bus reset, 7 system reboot.",
        samples=reading(lambda gpu: gpu.recovery_action),
    ),
    Family(
        name="gpu_health",
        help="Health of the GPU: 1 for the state that holds, 0 for the others. Unknown is neither good nor bad.",
        labels=("gpu", "state"),
        samples=_health,
    ),
    Family(
        name="gpu_finding",
        help="1 for each fault that stands on the GPU.",
        labels=("gpu", "code", "severity"),
        samples=_findings,
    ),
    Family(
        name="gpu_node_health",
        help="Health of the node's GPUs as a whole: 1 for the state that holds, 0 for the others.",
        labels=("state",),
        samples=_node_health,
    ),
    Family(
        name="gpu_node_finding",
        help="1 for each fault that stands on the node and belongs to no single GPU.",
        labels=("code", "severity"),
        samples=_node_findings,
    ),
)
