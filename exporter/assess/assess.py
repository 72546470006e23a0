"""One snapshot to health events: pure, without memory; `fold` remembers.

Laws:
1. Unknown says nothing: a hung, failed or unreadable subject yields no event about its values, good or bad. The hang
   itself is a finding (`probe-hung`), because nothing but a reboot frees a stuck driver call.
2. Every polled fault has its counter-event (`present=False`), given only when the value was read and is good.
3. What comes from another boot is no event.
"""

from exporter.assess.kernel import notice_events, xid_events
from exporter.assess.limits import Limits
from exporter.assess.polled import gpu_events, node_events
from exporter.health.vocabulary import HealthEvent
from exporter.readings import Snapshot


def assess(snapshot: Snapshot, limits: Limits) -> tuple[HealthEvent, ...]:
    """Everything that `snapshot` says about health, oldest kernel lines first, then what was polled."""
    return (
        *xid_events(snapshot),
        *notice_events(snapshot),
        *(event for gpu in snapshot.gpus for event in gpu_events(gpu)),
        *node_events(snapshot, limits),
    )
