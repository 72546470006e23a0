"""The Status bodies of a refusing API server, word for word as kube-apiserver 1.36 says them.

Laws:
1. Every refusal is an `ApiError`; nothing else leaves the server as a failure.
2. A text here is proven by tests/contract against the real server, or it carries "embedded" in its message.
"""

import json
from typing import Any

Obj = dict[str, Any]
"""One Kubernetes object or part of it, as JSON; stored ones are never changed in place."""


class ApiError(Exception):
    """A refusal with its HTTP code; `plain` replaces the JSON Status, `after_seconds` delays the answer."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers: dict[str, str] = {}
        self.plain = False
        self.after_seconds = 0.0

    def status(self) -> Obj:
        """The body as a `Status` object."""
        body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def success(details: Obj | None = None, code: int = 200) -> Obj:
    """The `Status` of a request that has no object to answer with."""
    body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code != 200:
        body["code"] = code
    return body


def details_of(group: str, name: str, kind: str) -> Obj:
    """The `details` of most refusals; the core group is left out, as the server does."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def qualified(plural: str, group: str) -> str:
    """`nodes`, `gpunodes.gpuward.io`: how messages name a resource."""
    return f"{plural}.{group}" if group else plural


def not_found(plural: str, group: str, name: str) -> ApiError:
    """404 of a missing object."""
    message = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", message, details_of(group, name, plural))


def no_such_path() -> ApiError:
    """404 of an unknown path: plain text, not a Status."""
    error = ApiError(404, "", "404 page not found\n")
    error.plain = True
    return error


def no_such_resource() -> ApiError:
    """404 of an unknown resource in a known API group."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str, *, terminating: bool = False) -> ApiError:
    """409 of a second create; `terminating` when the first one waits for its finalizers."""
    shown = qualified(plural, group)
    message = f'{shown} "{name}" already exists'
    if terminating:
        message = f"object is being deleted: {message}"
    return ApiError(409, "AlreadyExists", message, details_of(group, name, plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(plural: str, group: str, name: str, why: str = MODIFIED) -> ApiError:
    """409 of a stale resourceVersion or a precondition."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, details_of(group, name, plural))


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def not_allowed() -> ApiError:
    """405: the resource exists, the verb does not."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media(accepted: tuple[str, ...]) -> ApiError:
    """415 for a body in a format the resource does not take."""
    names = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {names}"
    return ApiError(415, "UnsupportedMediaType", message)


def refused_patch() -> ApiError:
    """422 of a JSON patch whose test fails or whose path is missing; the server tells no more than this."""
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def not_done_here(what: str) -> ApiError:
    """501: the embedded server does not do it and does not guess; the reason begins with the word `embedded`."""
    return ApiError(501, "NotImplemented", f"embedded API server: {what} is not implemented here")


def expired(wanted: int, oldest: int) -> ApiError:
    """410: the history no longer reaches back to `wanted`."""
    return ApiError(410, "Expired", f"too old resource version: {wanted} ({oldest})")


def too_large_version(wanted: int, current: int) -> ApiError:
    """504 after three seconds: a read at a version that does not exist yet."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details: Obj = {"causes": [cause], "retryAfterSeconds": 1}
    message = f"Timeout: Too large resource version: {wanted}, current: {current}"
    error = ApiError(504, "Timeout", message, details)
    error.headers["Retry-After"] = "1"
    error.after_seconds = 3.0
    return error


class FieldError:
    """One wrong field, printed as the server prints it."""

    def __init__(self, field: str, reason: str, text: str) -> None:
        self.field = field
        self.reason = reason
        self.text = text

    def cause(self) -> Obj:
        """The entry in `details.causes`."""
        return {"reason": self.reason, "message": self.text, "field": self.field}

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def wrong(field: str, value: object, why: str) -> FieldError:
    """`Invalid value`."""
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def wrong_type(field: str, got: str, why: str) -> FieldError:
    """`Invalid value` of a JSON type that the schema forbids."""
    return FieldError(field, "FieldValueTypeInvalid", f"Invalid value: {_shown(got)}: {why}")


def required(field: str, why: str = "") -> FieldError:
    """`Required value`; the server shows no reason for a schema's required fields."""
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {why}" if why else ""))


def not_supported(field: str, value: object, allowed: tuple[str, ...]) -> FieldError:
    """`Unsupported value` of an enumeration."""
    words = ", ".join(_shown(word) for word in allowed)
    text = f"Unsupported value: {_shown(value)}: supported values: {words}"
    return FieldError(field, "FieldValueNotSupported", text)


def forbidden_field(field: str, why: str) -> FieldError:
    """`Forbidden`."""
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {why}")


def duplicate(field: str, value: object, why: str = "") -> FieldError:
    """`Duplicate value`."""
    text = f"Duplicate value: {_shown(value)}" + (f": {why}" if why else "")
    return FieldError(field, "FieldValueDuplicate", text)


def too_many(field: str, count: int, most: int) -> FieldError:
    """`Too many` list entries."""
    return FieldError(field, "FieldValueTooMany", f"Too many: {count}: must have at most {most} items")


def too_long(field: str, most: int) -> FieldError:
    """`Too long` text."""
    return FieldError(field, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")


def invalid(kind: str, group: str, name: str, errors: list[FieldError]) -> ApiError:
    """422 with its causes."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    told = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = details_of(group, name, kind) | {"causes": [error.cause() for error in errors]}
    return ApiError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {told}', details)


def failed_rule(field: str, value: object, why: str) -> FieldError:
    """`Invalid value` of a CEL rule; the server shows scalars only."""
    told = "" if isinstance(value, dict | list) else f"{_shown(value)}: "
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {told}{why}")


def unchecked_rules() -> FieldError:
    """What the server adds when errors kept it from looking at CEL rules."""
    why = "some validation rules were not checked because the object was invalid; "
    return FieldError(
        "<nil>", "FieldValueInvalid", f"Invalid value: null: {why}correct the existing errors to complete validation"
    )


def _shown(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
