"""Two witnesses of one fault: NVML events and the kernel log tell the same Xid, and it must count once.

Laws:
1. A pair is one event of each of two sources, same GPU, same code, within the window. Events of one source are never a
   pair: a kernel that prints Xid 31 three times had three faults.
2. Each event pairs at most once, so n events here and m there count max(n, m) when they lie close together.
3. Bounded: at most `KEPT` open events per GPU and code, none older than the window.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

Subject = tuple[str, str]
"""GPU (UUID or address, "" for the node) and fault code."""

Sighting = tuple[str, datetime]
"""Source and time of an event that has found no partner yet."""

Unpaired = Mapping[Subject, tuple[Sighting, ...]]

KEPT = 256
"""Open events per subject: more than 50 a second over the whole window."""


def pair(
    unpaired: dict[Subject, tuple[Sighting, ...]], subject: Subject, sighting: Sighting, window: timedelta
) -> bool:
    """True when `sighting` is the second witness of an open event; updates `unpaired` in place either way."""
    source, at = sighting
    still_open = [seen for seen in unpaired.get(subject, ()) if at - seen[1] <= window]
    partner = next((seen for seen in still_open if seen[0] != source and abs(at - seen[1]) <= window), None)
    if partner is None:
        still_open.append(sighting)
    else:
        still_open.remove(partner)
    if still_open:
        unpaired[subject] = tuple(still_open[-KEPT:])
    else:
        unpaired.pop(subject, None)
    return partner is not None


def forget(unpaired: dict[Subject, tuple[Sighting, ...]], now: datetime, window: timedelta) -> None:
    """Drop subjects whose last event is too old to find a partner; events from the future stay."""
    for subject in [key for key, seen in unpaired.items() if now - max(at for _, at in seen) > window]:
        del unpaired[subject]
