"""Attribution: which pod holds which (part of a) GPU; one file per allocation or sharing system.

Lives here: pure functions over facts that the readers collected. May not live here: I/O of any kind.
May import: the standard library, `exporter.health`, `exporter.readings`.
"""

from collections.abc import Callable

from exporter.attribution.mig import mig_device
from exporter.attribution.naming import Names, Share
from exporter.attribution.whole import whole_gpu

SYSTEMS: tuple[Callable[[str, Names], Share | None], ...] = (whole_gpu, mig_device)
"""Each gives the GPU behind a device id, or None for an id that is not its own. Asked in this order."""
