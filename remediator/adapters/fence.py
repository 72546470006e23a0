"""The leader fence, where no write can get past it: in front of the transport.

Law: a request that changes anything is sent only while nobody else can lead for as long as the request may take.
"""

import time
from collections.abc import Callable

from remediator.adapters.errors import NotLeader
from remediator.adapters.transport import Reply, Request, Stream, StreamRequest, Transport

READS = ("GET", "HEAD")


class FencedTransport:
    """A transport whose writes stop with our leadership; reads and streams pass."""

    def __init__(self, transport: Transport, leader_until: Callable[[], float]) -> None:
        """`leader_until` answers with monotonic time, -inf when we do not lead."""
        self._transport = transport
        self._leader_until = leader_until

    def request(self, request: Request) -> Reply:
        if request.method not in READS and not self.open_for(request.timeout):
            raise NotLeader(f"{request.method} {request.path}: not the leader for long enough", reason="not-leader")
        return self._transport.request(request)

    def stream(self, request: StreamRequest) -> Stream:
        return self._transport.stream(request)

    def open_for(self, seconds: float) -> bool:
        """Whether we lead for at least `seconds` from now."""
        return self._leader_until() > time.monotonic() + seconds
