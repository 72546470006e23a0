"""What can go wrong when we ask the API server, named by what the caller must do.

    ApiError
    ├── Retryable      ask again after `after` seconds (our own back-off when None)
    │   └── NotLeader  not sent at all: the lease may not last as long as the request
    ├── Conflict       somebody else wrote: read again, decide again
    │   └── AlreadyExists
    ├── NotFound       the object (or its kind) is not there
    ├── Gone           our resourceVersion or continue token is too old: list again
    ├── Blocked        a PodDisruptionBudget says not now: a normal answer, look again later
    ├── Refused        the server said no and will say no again: tell a human
    ├── Unauthorized   no valid credentials even after the token was read again
    └── Fatal          we asked wrongly, or the set-up is wrong (TLS, method, path)

Laws:
1. No exception of urllib3, msgspec or the socket module leaves floor 1: `raise Ours(...) from theirs`.
2. Messages are short and never carry a header, a token or a request body.
"""

MESSAGE_LIMIT = 300
"""Characters kept of a server's message: enough for every text of Kubernetes, too little to leak an object."""


class ApiError(Exception):
    """Base of the tree; `status` is the HTTP status or 0 when there was no answer."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", after: float | None = None) -> None:
        super().__init__(message[:MESSAGE_LIMIT])
        self.status = status
        self.reason = reason
        self.after = after


class Retryable(ApiError):
    """No answer, or an answer that means "later"; `after` is the server's own wish in seconds, if it had one."""


class NotLeader(Retryable):
    """The fence held the request back."""


class Conflict(ApiError):
    """409: the precondition (resourceVersion or UID) does not hold any more."""


class AlreadyExists(Conflict):
    """409 on create: for a deterministic name this usually means that we were here before."""


class NotFound(ApiError):
    """404."""


class Gone(ApiError):
    """410, as HTTP status or inside a stream."""


class Blocked(ApiError):
    """Eviction refused by a disruption budget; `after` only when the budget is still being computed."""


class Refused(ApiError):
    """400, 403, 413, 422, and the evictions that can never succeed."""


class Unauthorized(ApiError):
    """401 twice, the second time with a freshly read token."""


class Fatal(ApiError):
    """Never retried: certificate not trusted, no such path, method not allowed, reply that is not Kubernetes."""
