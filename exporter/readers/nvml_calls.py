"""One GPU's calls: what failed, what it never supports, and when it is gone.

Laws:
1. A call that a GPU or driver does not support is asked once and then remembered (a raising call costs twice an
   answering one), until the GPU changes its mode (`forget`).
2. A call that says lost or reset-required ends the sweep of that GPU (`GpuGone`): some calls on a lost GPU still answer
   as if nothing were wrong, so nothing read beside it may be believed.
3. Every other failure is an absent value and a failed subject, never a number.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pynvml

from exporter.readers.nvml_library import DOWN, GONE, DriverDown, GpuGone

T = TypeVar("T")
Key = tuple[Any, ...]

UNSUPPORTED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
# An old driver answers INVALID_ARGUMENT for a field id it has not heard of.
UNSUPPORTED_FIELD = UNSUPPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
# What NVML writes into an unsigned result that it could not read.
SENTINELS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})

_VALUE_MEMBER = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def known(value: int) -> int | None:
    """None instead of NVML's "not available" numbers."""
    return None if value in SENTINELS else value


class OutOfTime(Exception):
    """Raised by whoever paces the calls: no further call on this GPU in this sweep."""


def unpaced() -> None:
    """The pace of callers without a deadline."""


class Calls:
    """The calls of one GPU handle, with their memory."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.pace: Callable[[], None] = unpaced
        """Asked before each call; may raise `OutOfTime`."""
        self.subject = ""
        """What is being read now; a failure is charged to it."""
        self.failed: set[str] = set()
        self.answered = 0
        """Calls that succeeded since `begin`."""
        self.sampled_until = 0
        """Time of the newest utilization sample that was read, microseconds; 0 = none yet."""
        self._unsupported: set[Key] = set()
        self._constants: dict[Key, Any] = {}

    def begin(self) -> None:
        """Start a sweep: failures and answers are counted per sweep."""
        self.failed = set()
        self.answered = 0

    @property
    def failing(self) -> bool:
        """Whether a call of the current subject failed: an older way to the same value is then no answer."""
        return self.subject in self.failed

    def forget(self) -> None:
        """Ask again for what was unsupported: the GPU's mode changed."""
        self._unsupported.clear()
        self._constants.clear()

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The answer for this GPU; None = unsupported, failed, or a sentinel. Raises `GpuGone`, `DriverDown`."""
        key = (function.__name__, *arguments)
        if key in self._unsupported:
            return None
        self.pace()
        try:
            answer = function(self.handle, *arguments)
        except pynvml.NVMLError as error:
            self.judge(error.value, key, UNSUPPORTED)
            return None
        except ValueError:
            # The binding decodes strings: a garbled one (broken InfoROM) is a failed reading.
            self.failed.add(self.subject)
            return None
        self.answered += 1
        return None if isinstance(answer, int) and answer in SENTINELS else answer

    def once(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Like `ask`, for what cannot change while the driver is loaded: a successful answer is kept."""
        key = (function.__name__, *arguments)
        if key not in self._constants:
            answer = self.ask(function, *arguments)
            if answer is None:
                return None
            self._constants[key] = answer
        kept: T = self._constants[key]
        return kept

    def fields(self, subjects: Iterable[tuple[int, str]]) -> dict[int, int | float]:
        """Field values by id in one batch; a batch succeeds although single entries fail, so each entry is judged.

        `subjects` pairs each field id with the subject that its failure is charged to. Absent id = None.
        """
        wanted = [(field, subject) for field, subject in subjects if ("field", field) not in self._unsupported]
        answers = self.ask(pynvml.nvmlDeviceGetFieldValues, tuple(field for field, _ in wanted)) if wanted else None
        values: dict[int, int | float] = {}
        before = self.subject
        for (field, subject), entry in zip(wanted, answers or (), strict=False):
            self.subject = subject
            if entry.nvmlReturn != pynvml.NVML_SUCCESS:
                self.judge(entry.nvmlReturn, ("field", field), UNSUPPORTED_FIELD)
                continue
            value = getattr(entry.value, _VALUE_MEMBER.get(entry.valueType, "ullVal"))
            if value not in SENTINELS:
                values[field] = value
        self.subject = before
        return values

    def judge(self, code: int, key: Key, unsupported: frozenset[int]) -> None:
        """What a call that failed with `code` means. Raises `GpuGone`, `DriverDown`."""
        if code in unsupported:
            self._unsupported.add(key)
        elif code in GONE:
            raise GpuGone(GONE[code])
        elif code in DOWN:
            raise DriverDown(*DOWN[code])
        else:
            self.failed.add(self.subject)
