"""The one place of this floor where every exception is caught: threads that must outlive our own mistakes.

A thread that dies silently is worse than one that fails loudly and goes on: each failure is logged with its traceback
and counted by the caller's own counter.
"""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

Failed = Callable[[str, Exception], None]
"""Told what was being done and what went wrong; must not raise."""


def ignore(what: str, error: Exception) -> None:
    """For callers whose own state already shows the failure."""


def survive(what: str, work: Callable[[], None], failed: Failed = ignore) -> bool:
    """Run `work`; True when it came through, False when it raised (logged, and told to `failed`)."""
    try:
        work()
    except Exception as error:
        log.exception("failed what=%s", what)
        failed(what, error)
        return False
    return True
