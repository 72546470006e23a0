"""A node of two H100 by hand, as the exposition sees it: one busy and faulty, one lost."""

from exporter.assess.judge import judge
from exporter.assess.ledger import Ledger
from exporter.assess.report import report
from exporter.assess.xids import XidCount
from exporter.attribution.devices import holders
from exporter.exposition.family import Facts
from exporter.readings import (
    ClockReading,
    DriverInfo,
    EccCount,
    GpuIntegrals,
    GpuReadings,
    GpuStatus,
    NvLinkState,
    PcieLink,
    PodDevice,
    PodMapping,
    RowRemap,
    Snapshot,
)
from tests.rig.readings_world import T0, a_gpu, a_snapshot, an_identity, an_xid, at, uuid


def a_busy_gpu(index: int = 0) -> GpuReadings:
    """Every reading has a value; row remap waits for a reset."""
    return a_gpu(
        index,
        identity=an_identity(
            index,
            brand="nvidia",
            architecture="hopper",
            vbios="96.00.74.00.01",
            compute_capability="9.0",
            mig_uuids=(f"MIG-{index}",),
        ),
        utilization_ratio=1.01,
        memory_copy_utilization_ratio=0.35,
        memory_total_bytes=85520809984,
        memory_used_bytes=60000000000,
        memory_free_bytes=24943044608,
        memory_reserved_bytes=577765376,
        temperature_celsius=61.0,
        memory_temperature_celsius=72.0,
        slowdown_celsius=89.0,
        shutdown_celsius=92.0,
        power_watts=612.345,
        power_limit_watts=700.0,
        energy_joules=123456789.012,
        clocks=(ClockReading(domain="sm", current_hertz=1.755e9, max_hertz=1.98e9),),
        clock_event_bits=0x4 | 0x40,
        performance_state=0,
        ecc_mode=True,
        ecc=(
            EccCount(type="corrected", aggregate=7, volatile=2),
            EccCount(type="uncorrected", aggregate=1, volatile=None),
        ),
        row_remap=RowRemap(corrected_rows=1, uncorrected_rows=2, pending=True, failure=False),
        pcie=PcieLink(generation=5, generation_max=5, width=8, width_max=16, replays=3),
        nvlinks=(NvLinkState(link=0, active=True), NvLinkState(link=1, active=False)),
        persistence_mode=True,
        compute_processes=2,
        integrals=GpuIntegrals(busy_seconds=4321.5, memory_byte_seconds=2.5e14, unobserved_seconds=12.0),
        failed=("fan",),
        sweep_seconds=0.0042,
    )


def a_full_snapshot() -> Snapshot:
    """GPU 0 answers, GPU 1 is lost; an Xid 79 of GPU 1 came."""
    return a_snapshot(
        a_busy_gpu(0),
        a_gpu(1, status=GpuStatus.LOST),
        driver=DriverInfo(driver_version="575.57.08", nvml_version="12.575.57.08", cuda_version="12.9"),
        xids=(an_xid(79, gpu=1),),
        worker_restarts=1,
        failed_reads=((uuid(0), "fan", 3),),
    )


def a_mapping() -> PodMapping:
    """A whole GPU, a MIG slice, a device nobody knows, and a network card."""

    def held(pod: str, resource: str, device: str) -> PodDevice:
        return PodDevice(namespace="ml", pod=pod, container="main", resource=resource, device_id=device)

    return PodMapping(
        known=True,
        devices=(
            held("train-0", "nvidia.com/gpu", uuid(1)),
            held("serve-0", "nvidia.com/mig-1g.10gb", "MIG-0"),
            held('odd"name', "nvidia.com/gpu", "GPU-elsewhere"),
            held("train-0", "rdma/hca", "mlx5_0"),
        ),
        allocatable=(("nvidia.com/gpu", uuid(1)), ("nvidia.com/mig-1g.10gb", "MIG-0"), ("rdma/hca", "mlx5_0")),
        taken_at=T0,
    )


def some_facts(snapshot: Snapshot | None = None, mapping: PodMapping | None = None) -> Facts:
    """The facts of one turn, three seconds after the sweep, judged as the loop judges them."""
    seen = snapshot or a_full_snapshot()
    known = mapping or a_mapping()
    ledger = judge(Ledger(), seen, at(3))
    return Facts(
        snapshot=seen,
        report=report(ledger, seen, known, holders(known, seen.gpus), "0.0.0"),
        mapping=known,
        xids=(
            XidCount(gpu=uuid(1), code=79, count=1, last_seen=T0),
            XidCount(gpu=None, code=31, count=2, last_seen=at(0.5)),
        ),
        now=at(3),
    )
