"""Identity: which GPUs, which driver. Info series to join on; their value is always 1."""

from collections.abc import Iterator

from exporter.exposition.family import Facts, Family, Sample
from exporter.readings import DriverState


def _gpus(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.snapshot.gpus:
        who = gpu.identity
        labels = (
            who.uuid,
            str(who.index),
            "" if who.minor is None else str(who.minor),
            who.model,
            who.brand or "",
            who.architecture or "",
            who.pci_bus_id,
            who.serial or "",
            who.vbios or "",
            who.compute_capability or "",
        )
        yield labels, 1


def _mig(facts: Facts) -> Iterator[Sample]:
    for gpu in facts.snapshot.gpus:
        for mig in gpu.identity.mig_uuids:
            yield (gpu.identity.uuid, mig), 1


def _driver(facts: Facts) -> Iterator[Sample]:
    driver = facts.snapshot.driver
    if driver is not None:
        yield (driver.driver_version, driver.cuda_version or "", driver.nvml_version or ""), 1


def _driver_state(facts: Facts) -> Iterator[Sample]:
    for state in DriverState:
        yield (state.value,), int(facts.snapshot.driver_state is state)


def _counts(facts: Facts) -> Iterator[Sample]:
    yield ("expected",), facts.report.expected_gpus
    yield ("seen",), facts.report.seen_gpus


FAMILIES = (
    Family(
        name="gpu_info",
        help="Identity of each GPU ever seen in this boot; empty labels are not supported by the GPU.",
        labels=(
            "gpu",
            "index",
            "minor",
            "name",
            "brand",
            "arch",
            "pci_bus_id",
            "serial",
            "vbios",
            "compute_capability",
        ),
        samples=_gpus,
    ),
    Family(
        name="gpu_mig_info",
        help="MIG devices and the GPU that each is a part of.",
        labels=("gpu", "mig_uuid"),
        samples=_mig,
    ),
    Family(
        name="gpu_driver_info",
        help="Versions of the driver stack of this node.",
        labels=("driver", "cuda", "nvml"),
        samples=_driver,
    ),
    Family(
        name="gpu_driver_state",
        help="State of the driver on this node: 1 for the state that holds, 0 for the others.",
        labels=("state",),
        samples=_driver_state,
    ),
    Family(
        name="gpu_node_gpus",
        help="GPUs that this node should have (expected) and that the driver enumerates (seen).",
        labels=("kind",),
        samples=_counts,
    ),
)
