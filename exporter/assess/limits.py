"""The numbers of judgement, each with its reason; handed down once, never read from the environment here."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of `assess` and `fold`."""

    expected_gpus: int | None = None
    """GPUs this node should have (configured, or the most ever seen on it); None = as many as this boot has shown."""

    app_quiet: timedelta = timedelta(minutes=15)
    """Quiet time after which an application fault is over.

    A crash loop restarts at least every 5 minutes (the kubelet's longest back-off), so three times that never flickers.
    """

    duplicate_window: timedelta = timedelta(seconds=5)
    """Two witnesses (NVML event, kernel log) of one Xid lie closer than this: the kernel log is read within a second,
    the event thread wakes once a second, and a blocked driver call may hold either back for a moment."""

    sympathy_window: timedelta = timedelta(minutes=3)
    """A follow-up Xid belongs to the fault before it when it comes within this gap (vendor's grouping window)."""

    good_reads: int = 2
    """Good readings in a row that end a polled fault. One may be a race between two calls of one sweep."""

    longest_absence: timedelta = timedelta(minutes=2)
    """A longer gap between two folds means that nobody watched: quiet clocks start again."""

    reading_life: timedelta = timedelta(minutes=1)
    """A GPU that answered longer ago is unknown: its worker is stuck or dead. At least three intervals; a minute is
    twice what taking eight GPUs without persistence mode lasts."""

    max_findings: int = 1024
    """Standing findings kept: 64 GPUs with 16 codes each. More are counted in `Ledger.dropped`, never swapped out."""
