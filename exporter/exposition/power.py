"""Power and energy. For cost use the rate of the energy counter: the power gauge lies between scrapes."""

from exporter.exposition.family import Family, Kind, reading, readings

FAMILIES = (
    Family(
        name="gpu_power_watts",
        help="Power drawn by the whole board, as the driver reports it (averaged over about a second where it can).",
        unit="watts",
        samples=reading(lambda gpu: gpu.power_watts),
    ),
    Family(
        name="gpu_power_limit_watts",
        help="Power limit in force.",
        unit="watts",
        labels=("gpu", "kind"),
        samples=readings(lambda gpu: (("enforced", gpu.power_limit_watts),)),
    ),
    Family(
        name="gpu_energy_joules_total",
        help="Energy used since the driver was loaded.",
        kind=Kind.COUNTER,
        unit="joules",
        samples=reading(lambda gpu: gpu.energy_joules),
    ),
)
