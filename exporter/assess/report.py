"""The ledger and the last snapshot to what other programs see: health per GPU, health of the node, advice.

Health of a GPU, first match wins:

| Standing findings and status                                                       | Health    |
|------------------------------------------------------------------------------------|-----------|
| a critical finding whose scope is not the application, other than `probe-hung`     | Unhealthy |
| the probe hung or `probe-hung` stands, every call failed, the driver is not there  | Unknown   |
| it answered, but longer ago than `Limits.reading_life`                             | Unknown   |
| lost, missing, or reset required                                                   | Unhealthy |
| any other finding of severity warning, error or critical                           | Degraded  |
| nothing, or findings of severity info only                                         | Healthy   |

So application Xids (13, 31, 43) make a GPU Degraded at most, Xid 45 leaves it Healthy; what is proven stands even
while nobody can read the GPU; and a hang alone is Unknown, with `probe-hung` (critical, advice reboot-node) beside it
to act on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from exporter.assess.ledger import Ledger
from exporter.assess.limits import Limits
from exporter.assess.polled import expected_gpus, nameless
from exporter.health.codes import PROBE_HUNG, RECOVERY_ACTION
from exporter.health.vocabulary import (
    SEVERITY_ORDER,
    DevicePod,
    DeviceReport,
    Finding,
    Health,
    HealthReport,
    Scope,
    Severity,
)
from exporter.readings import DriverState, GpuReadings, GpuStatus, PodMapping, Snapshot

UNREAD = frozenset({GpuStatus.HUNG, GpuStatus.FAILED})
GONE = frozenset({GpuStatus.LOST, GpuStatus.MISSING, GpuStatus.RESET_REQUIRED})

WORST_FIRST = (Health.UNHEALTHY, Health.UNKNOWN, Health.DEGRADED, Health.HEALTHY)
"""Unknown outranks Degraded: nobody may trust a node with a GPU that cannot be judged."""


def report(
    ledger: Ledger,
    snapshot: Snapshot,
    mapping: PodMapping,
    pods: Mapping[str, tuple[DevicePod, ...]],
    exporter_version: str,
) -> HealthReport:
    """What the exporter says about its node; `pods` = holders by GPU UUID, as attribution made them of `mapping`."""
    gpus = tuple(
        _device(
            gpu,
            _of(ledger.findings, gpu.identity.uuid),
            pods.get(gpu.identity.uuid, ()),
            answers(gpu, snapshot, ledger.limits),
        )
        for gpu in snapshot.gpus
    )
    findings = tuple(sorted((f for f in ledger.findings if f.gpu is None), key=_worst_first))
    return HealthReport(
        node=snapshot.node,
        boot_id=snapshot.boot_id,
        observed_at=snapshot.taken_at,
        driver_version=snapshot.driver.driver_version if snapshot.driver else None,
        exporter_version=exporter_version,
        expected_gpus=expected_gpus(snapshot, ledger.expectation),
        seen_gpus=snapshot.enumerated,
        health=node_health((gpu.health for gpu in gpus), findings, doubtful=_doubtful(ledger, snapshot)),
        gpus=gpus,
        findings=findings,
        mapping_known=mapping.known,
        driver_state=snapshot.driver_state.value,
    )


def answers(gpu: GpuReadings, snapshot: Snapshot, limits: Limits) -> bool:
    """Whether what the GPU said may be believed now; one that is gone says nothing that could grow old."""
    fresh = gpu.status is not GpuStatus.UP or snapshot.taken_at - gpu.taken_at <= limits.reading_life
    return fresh and snapshot.driver_state is DriverState.OK


def believable(snapshot: Snapshot, now: datetime, limits: Limits) -> Snapshot:
    """`snapshot` as it may be shown at `now`: readings older than `Limits.reading_life` are void.

    Whoever takes the snapshots may be stuck while everybody else goes on.
    """
    return replace(
        snapshot,
        gpus=tuple(
            GpuReadings(identity=gpu.identity, status=GpuStatus.FAILED, taken_at=gpu.taken_at)
            if gpu.status is GpuStatus.UP and now - gpu.taken_at > limits.reading_life
            else gpu
            for gpu in snapshot.gpus
        ),
    )


def _doubtful(ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether there may be a GPU of which nothing is known."""
    named = {gpu.identity.uuid for gpu in snapshot.gpus}
    heard_of = any(f.gpu is not None and f.gpu not in named and _damns(f) for f in ledger.findings)
    return snapshot.driver_state is not DriverState.OK or nameless(snapshot) > 0 or heard_of


def _of(findings: Iterable[Finding], gpu: str) -> tuple[Finding, ...]:
    return advised(tuple(sorted((f for f in findings if f.gpu == gpu), key=_worst_first)))


def _worst_first(finding: Finding) -> tuple[int, str]:
    return -SEVERITY_ORDER.index(finding.severity), finding.code


def advised(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings of one GPU with the driver's own demand as their advice, where it makes one.

    Application warnings keep theirs: what a program did wrong is not what the driver speaks of.
    """
    driver = next((f for f in findings if f.code == RECOVERY_ACTION), None)
    if driver is None:
        return findings
    return tuple(f if _of_application(f) else replace(f, advice=driver.advice) for f in findings)


def _of_application(finding: Finding) -> bool:
    return finding.scope is Scope.APP and finding.severity in (Severity.INFO, Severity.WARNING)


def _device(
    gpu: GpuReadings, findings: tuple[Finding, ...], pods: tuple[DevicePod, ...], answered: bool
) -> DeviceReport:
    identity = gpu.identity
    return DeviceReport(
        uuid=identity.uuid,
        index=identity.index,
        minor=identity.minor,
        pci_bus_id=identity.pci_bus_id,
        serial=identity.serial,
        model=identity.model,
        health=gpu_health(findings, gpu.status, answered),
        findings=findings,
        pods=pods,
        mig=identity.mig_uuids,
    )


def gpu_health(findings: Iterable[Finding], status: GpuStatus, answered: bool) -> Health:
    """The decision table at the head of this file."""
    standing = tuple(findings)
    if any(_damns(finding) for finding in standing):
        return Health.UNHEALTHY
    if status in UNREAD or not answered or any(f.code == PROBE_HUNG for f in standing):
        return Health.UNKNOWN
    if status in GONE:
        return Health.UNHEALTHY
    if any(finding.severity is not Severity.INFO for finding in standing):
        return Health.DEGRADED
    return Health.HEALTHY


def _damns(finding: Finding) -> bool:
    return finding.severity is Severity.CRITICAL and finding.scope is not Scope.APP and finding.code != PROBE_HUNG


def node_health(gpus: Iterable[Health], findings: Iterable[Finding], *, doubtful: bool) -> Health:
    """The worst of the GPUs and the node's own findings; Unknown at least when there may be more than they tell."""
    seen = set(gpus)
    standing = tuple(findings)
    if any(_damns(finding) for finding in standing):
        seen.add(Health.UNHEALTHY)
    if doubtful:
        seen.add(Health.UNKNOWN)
    if any(finding.severity is not Severity.INFO for finding in standing):
        seen.add(Health.DEGRADED)
    return next((health for health in WORST_FIRST if health in seen), Health.HEALTHY)
