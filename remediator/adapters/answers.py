"""The API server's answers turned into our errors (`errors.py`), status by status.

Sources of the shapes: measured on kube-apiserver 1.36. A 429 comes in three: a disruption budget (no Retry-After), a
budget not computed yet (Retry-After 10), overload (plain text, not JSON). An eviction covered by two budgets is a 500
that never heals.
"""

from collections.abc import Mapping

from remediator.adapters import wire
from remediator.adapters.errors import (
    AlreadyExists,
    ApiError,
    Blocked,
    Conflict,
    Fatal,
    Gone,
    NotFound,
    Refused,
    Retryable,
    Unauthorized,
)
from remediator.adapters.transport import Reply

_DISRUPTION_BUDGET = "DisruptionBudget"
_TWO_BUDGETS = "more than one PodDisruptionBudget"
_PLAIN: dict[int, type[ApiError]] = {
    400: Refused,
    401: Unauthorized,
    403: Refused,
    404: NotFound,
    405: Fatal,
    406: Fatal,
    408: Retryable,
    410: Gone,
    413: Refused,
    415: Fatal,
    422: Refused,
}


def error_of(what: str, reply: Reply) -> ApiError:
    """The error that `reply` (status 300 or above) means; `what` names the call for the log."""
    status = _status_of(reply.body)
    return error_from_status(what, reply.status, status, _retry_after(reply.headers, status))


def error_in_stream(what: str, event_object: bytes) -> ApiError:
    """The error that an ERROR event of a watch carries; the code counts, the HTTP status was 200."""
    status = _status_of(event_object)
    return error_from_status(what, status.code or 500, status, _retry_after({}, status))


def error_from_status(what: str, code: int, status: wire.Status, after: float | None) -> ApiError:
    """One rule per line, the special ones first."""
    message = f"{what}: {code} {status.message or status.reason}".strip()
    kind = _kind(code, status)
    return kind(message, status=code, reason=status.reason, after=after)


def _kind(code: int, status: wire.Status) -> type[ApiError]:
    if code == 409:
        return AlreadyExists if status.reason == "AlreadyExists" else Conflict
    if code == 429:
        return Blocked if _by_budget(status) else Retryable
    if code >= 500:
        return Refused if _TWO_BUDGETS in status.message else Retryable
    return _PLAIN.get(code, Fatal)


def _by_budget(status: wire.Status) -> bool:
    causes = status.details.causes if status.details else ()
    return any(cause.reason == _DISRUPTION_BUDGET for cause in causes) or "disruption budget" in status.message


def _status_of(body: bytes) -> wire.Status:
    try:
        return wire.decode(body, wire.Status)
    except wire.Garbled:
        # Overload protection and proxies answer in plain text.
        return wire.Status(message=body[:120].decode("utf-8", "replace").strip())


def _retry_after(headers: Mapping[str, str], status: wire.Status) -> float | None:
    text = headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    if status.details and status.details.retry_after_seconds > 0:
        return float(status.details.retry_after_seconds)
    return None
