"""nvmlDeviceGetFieldValues: many readings in one call, each with a return code of its own.

Law: the call succeeds although single fields fail; a field that this board lacks says NOT_SUPPORTED in its entry.
On a lost GPU every entry says GPU_IS_LOST but the recovery action, which the kernel driver itself remembers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from exporter.simulation import physics
from exporter.simulation.calls_faults import ecc_count
from exporter.simulation.calls_readings import energy_millijoules, power_milliwatts
from exporter.simulation.driver import Board, Failure, number
from exporter.simulation.profiles import Profile

RECOVERY_ACTION: Final = 230
_INT, _LONG, _SIGNED = "uiVal", "ullVal", "siVal"
_TYPES: Final = {
    _INT: pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
    _LONG: pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    _SIGNED: pynvml.NVML_VALUE_TYPE_SIGNED_INT,
}


@dataclass(frozen=True)
class Field:
    """How one field is answered: which member of the value, on which hardware, from what (board, scope)."""

    member: str
    has: Callable[[Profile], bool]
    read: Callable[[Board, int], int]


def _always(profile: Profile) -> bool:
    return True


def _ecc(error_type: int, counter_type: int) -> Field:
    return Field(_LONG, _always, lambda board, scope: ecc_count(board.gpu.ecc, error_type, counter_type))


def _remap(read: Callable[[Board, int], int]) -> Field:
    return Field(_INT, lambda profile: profile.row_remap, read)


def _pages(read: Callable[[Board, int], int]) -> Field:
    return Field(_LONG, lambda profile: not profile.row_remap, read)


def _limit(watts: Callable[[Profile], float]) -> Field:
    return Field(_INT, _always, lambda board, scope: round(1000 * watts(board.profile)))


def _hopper(profile: Profile) -> bool:
    return profile.architecture >= int(pynvml.NVML_DEVICE_ARCH_HOPPER)


def _link_state(board: Board, scope: int) -> int:
    if scope >= board.profile.nvlinks:
        raise Failure(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return int(scope not in board.gpu.links_down)


def _memory_celsius(board: Board, scope: int) -> int:
    return round(physics.memory_temperature_celsius(board.profile, board.gpu, board.now))


FIELDS: Final[dict[int, Field]] = {
    1: Field(_INT, _always, lambda board, scope: 1),
    2: Field(_INT, _always, lambda board, scope: 1),
    3: _ecc(0, 0),
    4: _ecc(1, 0),
    5: _ecc(0, 1),
    6: _ecc(1, 1),
    11: _ecc(0, 0),
    12: _ecc(1, 0),
    22: _ecc(0, 1),
    23: _ecc(1, 1),
    29: _pages(lambda board, scope: 0),
    30: _pages(lambda board, scope: board.gpu.pages_retired),
    31: _pages(lambda board, scope: int(board.gpu.pages_pending)),
    82: Field(_INT, lambda profile: profile.memory_temperature, _memory_celsius),
    83: Field(_LONG, _always, lambda board, scope: energy_millijoules(board)),
    91: Field(_INT, lambda profile: profile.nvlinks > 0, lambda board, scope: board.profile.nvlinks),
    92: _pages(lambda board, scope: 0),
    93: _pages(lambda board, scope: int(board.gpu.pages_pending)),
    94: Field(_LONG, _always, lambda board, scope: 0),
    142: _remap(lambda board, scope: board.gpu.rows_corrected),
    143: _remap(lambda board, scope: board.gpu.rows_uncorrected),
    144: _remap(lambda board, scope: int(board.gpu.remap_pending)),
    145: _remap(lambda board, scope: int(board.gpu.remap_failure)),
    165: Field(_INT, lambda profile: profile.nvlinks > 0, _link_state),
    # Averaged power exists on Ampere and later, but not on the GA100 chip; of our boards that leaves Hopper.
    185: Field(_INT, _hopper, lambda board, scope: power_milliwatts(board)),
    186: Field(_INT, _always, lambda board, scope: power_milliwatts(board)),
    187: _limit(lambda profile: profile.min_limit_watts),
    188: _limit(lambda profile: profile.limit_watts),
    189: _limit(lambda profile: profile.limit_watts),
    190: _limit(lambda profile: profile.limit_watts),
    192: _limit(lambda profile: profile.limit_watts),
    193: Field(_SIGNED, _hopper, lambda board, scope: -8),
    194: Field(_SIGNED, _hopper, lambda board, scope: -2),
    196: Field(_SIGNED, _hopper, lambda board, scope: 0),
    RECOVERY_ACTION: Field(
        _INT, lambda profile: profile.has_recovery_action, lambda board, scope: board.gpu.recovery_action
    ),
}


def field_values(board: Board, count: Any, values: Any) -> None:
    """nvmlDeviceGetFieldValues over an array that says field and scope of each entry."""
    entries: Iterable[Any] = getattr(values, "_obj", values)
    for _, entry in zip(range(number(count)), entries, strict=False):
        entry.timestamp, entry.latencyUsec = int(board.now * 1e6), 0
        try:
            _answer(board, entry)
            entry.nvmlReturn = pynvml.NVML_SUCCESS
        except Failure as failed:
            entry.nvmlReturn = failed.code


def _answer(board: Board, entry: Any) -> None:
    lost = board.gpu.lost or board.gpu.missing
    if lost and not (entry.fieldId == RECOVERY_ACTION and not board.gpu.missing):
        raise Failure(pynvml.NVML_ERROR_GPU_IS_LOST)
    field = FIELDS.get(entry.fieldId)
    if field is None or not field.has(board.profile):
        raise Failure(pynvml.NVML_ERROR_NOT_SUPPORTED)
    setattr(entry.value, field.member, field.read(board, entry.scopeId))
    entry.valueType = _TYPES[field.member]
