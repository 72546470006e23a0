"""Which GPUs the worker must not touch, and when each may be tried again; pure.

A GPU that hung is tried again by a probe of its own, so that a second hang costs nobody else anything, after 1, 2, 4...
times the base delay. A GPU that was released for a reset comes back the same way, since a reset may have failed.
"""

LONGEST_RETRY_SECONDS = 900.0


def back_off(attempt: int, base_seconds: float, longest_seconds: float) -> float:
    """Delay before retry number `attempt` (0 = the first): doubles from the base up to the longest."""
    # The exponent is bounded: 2.0 ** 1024 would overflow after some years of retries.
    return float(min(longest_seconds, base_seconds * 2.0 ** min(attempt, 32)))


class Exclusions:
    """The excluded NVML indices; all times on the monotonic clock, seconds."""

    def __init__(self, retry_seconds: float) -> None:
        self._retry_seconds = retry_seconds
        self._retry_at: dict[int, float] = {}
        self._attempts: dict[int, int] = {}

    @property
    def indices(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted(self._retry_at))

    def __bool__(self) -> bool:
        return bool(self._retry_at)

    def hung(self, index: int, now: float) -> None:
        """The GPU did not answer (again)."""
        attempt = self._attempts.get(index, 0)
        self._attempts[index] = attempt + 1
        self._retry_at[index] = now + back_off(attempt, self._retry_seconds, LONGEST_RETRY_SECONDS)

    def released(self, index: int, until: float) -> None:
        """Somebody asked for the GPU to be left alone until then."""
        self._retry_at[index] = until

    def answered(self, index: int) -> None:
        """The GPU may be read again; the count of its hangs stays, so that one that flaps is tried ever more rarely."""
        self._retry_at.pop(index, None)

    def due(self, now: float) -> int | None:
        """An index whose time has come, the longest waiting first."""
        ready = [(at, index) for index, at in self._retry_at.items() if at <= now]
        return min(ready)[1] if ready else None

    def forget(self) -> None:
        """The indices mean other GPUs now, or another boot."""
        self._retry_at.clear()
        self._attempts.clear()
