"""Messages to people: one webhook in the shape that Slack and its like accept (`{"text": ...}`).

Laws: never blocks, never raises; a full queue drops the news and counts it; the URL is a secret and never logged.
"""

import logging
import queue
import threading
from collections.abc import Callable

import requests

from remediator.adapters.guarded import survive
from remediator.adapters.recorder import Told

log = logging.getLogger(__name__)

QUEUE_LIMIT = 100
TIMEOUT = 10.0


class Webhook:
    """One thread that posts what the others tell about incidents."""

    def __init__(self, url: str, on_result: Callable[[str], None]) -> None:
        self._url = url
        self._on_result = on_result
        self._waiting: queue.Queue[str | None] = queue.Queue(QUEUE_LIMIT)
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 3.0) -> None:
        """Send what is queued, at most `timeout` seconds long."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        if self._thread.is_alive():
            self._thread.join(timeout)

    def tell(self, told: Told) -> None:
        """Have one sentence sent soon."""
        mark = ":warning: " if told.warning else ""
        try:
            self._waiting.put_nowait(f"{mark}*{told.reason}* {told.kind} {told.name}: {told.message}")
        except queue.Full:
            self._on_result("dropped")

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            self._send_guarded(text)

    def _send_guarded(self, text: str) -> None:
        survive("notify", lambda: self._send(text), lambda _what, _error: self._on_result("failed"))

    def _send(self, text: str) -> None:
        try:
            answer = requests.post(self._url, json={"text": text}, timeout=TIMEOUT, allow_redirects=False)
        except requests.RequestException as error:
            # Only the type: requests puts the URL into its messages.
            log.warning("notification not sent error=%s", type(error).__name__)
            self._on_result("failed")
            return
        self._on_result("sent" if answer.status_code < 300 else "refused")
