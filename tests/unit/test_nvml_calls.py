"""One call's three ways to bring no value: unsupported, failed, gone; and they never look alike."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from exporter.readers.nvml_calls import Calls
from exporter.readers.nvml_library import DriverDown, GpuGone
from exporter.readers.nvml_subjects import ratio
from exporter.readings import DriverState, GpuStatus


class Scripted:
    """A binding function that answers from a list; it counts how often it was asked."""

    __name__ = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, handle: object, *arguments: object) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def code(number: int) -> Exception:
    error: Exception = pynvml.NVMLError(number)
    return error


def some_calls() -> Calls:
    calls = Calls(handle=object())
    calls.begin()
    calls.subject = "power"
    return calls


@pytest.mark.parametrize("number", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_unsupported_is_asked_once_and_is_no_failure(number: int) -> None:
    calls, function = some_calls(), Scripted(code(number))
    assert [calls.ask(function), calls.ask(function)] == [None, None]
    assert (function.asked, calls.failed) == (1, set())


def test_unsupported_is_remembered_per_argument_and_forgotten_with_a_new_mode() -> None:
    calls, function = some_calls(), Scripted(code(pynvml.NVML_ERROR_NOT_SUPPORTED), 7)
    assert (calls.ask(function, 0), calls.ask(function, 1), calls.ask(function, 0)) == (None, 7, None)
    calls.forget()
    assert calls.ask(function, 0) == 7


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(code(pynvml.NVML_ERROR_UNKNOWN), id="unknown"),
        pytest.param(code(pynvml.NVML_ERROR_TIMEOUT), id="timeout"),
        pytest.param(code(pynvml.NVML_ERROR_NO_PERMISSION), id="no permission"),
        pytest.param(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "garbled"), id="garbled text"),
    ],
)
def test_a_failure_is_charged_to_the_subject_and_asked_again(failure: Exception) -> None:
    calls, function = some_calls(), Scripted(failure, 5)
    assert calls.ask(function) is None
    assert calls.failed == {"power"}
    calls.begin()
    assert (calls.ask(function), calls.failed) == (5, set())


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuStatus.LOST),
        (pynvml.NVML_ERROR_GPU_NOT_FOUND, GpuStatus.LOST),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuStatus.RESET_REQUIRED),
    ],
)
def test_a_gpu_that_is_gone_ends_its_sweep(number: int, status: GpuStatus) -> None:
    with pytest.raises(GpuGone) as gone:
        some_calls().ask(Scripted(code(number)))
    assert gone.value.status is status


@pytest.mark.parametrize(
    "number",
    [
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    ],
)
def test_a_driver_that_is_gone_ends_everything(number: int) -> None:
    with pytest.raises(DriverDown) as down:
        some_calls().ask(Scripted(code(number)))
    assert down.value.state is DriverState.NO_DRIVER and down.value.details


@pytest.mark.parametrize("sentinel", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_no_sentinel_leaves_the_reader(sentinel: int) -> None:
    assert some_calls().ask(Scripted(sentinel)) is None


def test_zero_is_a_value() -> None:
    assert some_calls().ask(Scripted(0)) == 0


def test_once_keeps_an_answer_but_not_a_failure() -> None:
    calls, function = some_calls(), Scripted(code(pynvml.NVML_ERROR_UNKNOWN), 90, 91)
    asked: list[Callable[[], int | None]] = [lambda: calls.once(function)] * 3
    assert [ask() for ask in asked] == [None, 90, 90]


@pytest.mark.parametrize(("percent", "value"), [(0, 0.0), (100, 1.0), (101, None), (808334905, None)])
def test_impossible_percentages_are_no_ratios(percent: int, value: float | None) -> None:
    assert ratio(percent) == value
