"""Waiting for a real part: poll until a deadline, and say what was seen last."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.1


def eventually(what: str, look: Callable[[], T | None], seconds: float = 30.0, every: float = POLL_SECONDS) -> T:
    """Return the first truthy answer of `look`; AssertionError with the last answer or error after `seconds`.

    AssertionError, OSError and LookupError count as "not yet": real parts refuse connections while they start.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            answer = look()
            if answer:
                return answer
            last = answer
        except (AssertionError, OSError, LookupError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not true: {what}; last seen: {last!r}")
        time.sleep(every)
