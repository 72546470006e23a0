"""Messages to people: one webhook in the shape that Slack and its like accept (`{"text": ...}`).

Laws: never blocks, never raises; a full queue drops the news and counts it; the URL is a secret and never logged.
"""

import logging
from collections.abc import Callable

import requests

from remediator.adapters.outbox import Outbox
from remediator.adapters.recorder import Told

log = logging.getLogger(__name__)

QUEUE_LIMIT = 100
TIMEOUT = 10.0


class Webhook:
    """One thread that posts what the others tell about incidents."""

    def __init__(self, url: str, on_result: Callable[[str], None]) -> None:
        self._url = url
        self._on_result = on_result
        self._outbox: Outbox[str] = Outbox("notify", QUEUE_LIMIT, self._send, on_result)

    def start(self) -> None:
        self._outbox.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Send what is queued, at most `timeout` seconds long."""
        self._outbox.stop(timeout)

    def tell(self, told: Told) -> None:
        """Have one sentence sent soon."""
        mark = ":warning: " if told.warning else ""
        self._outbox.put(f"{mark}*{told.reason}* {told.kind} {told.name}: {told.message}")

    def _send(self, text: str) -> None:
        try:
            answer = requests.post(self._url, json={"text": text}, timeout=TIMEOUT, allow_redirects=False)
        except requests.RequestException as error:
            # Only the type: requests puts the URL into its messages.
            log.warning("notification not sent error=%s", type(error).__name__)
            self._on_result("failed")
            return
        self._on_result("sent" if answer.status_code < 300 else "refused")
