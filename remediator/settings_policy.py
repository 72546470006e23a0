"""The policy file: read at start, read again between turns, refused as a whole when it is wrong.

Laws:
1. At start a wrong file ends the program: there is no last good one.
2. Later a wrong file changes nothing but what we say: the last good policy stays in force.
3. Content counts, not the time stamp: a ConfigMap is swapped by a symlink.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from remediator.domain.policy import Policy, load_policy
from remediator.domain.policy_errors import PolicyError

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""A file read at most so often; kubelets take up to a minute to swap a ConfigMap anyway."""


@dataclass(frozen=True, kw_only=True)
class PolicyNews:
    """What is to be said after a look at the file."""

    policy: Policy
    """The one in force."""
    valid: bool
    """The file says the same."""
    problems: tuple[str, ...] = ()
    loaded_at: datetime


class PolicyFile:
    """The policy in force; `current` from any thread, `refresh` from the loop."""

    def __init__(
        self, path: Path | None, told: Callable[[PolicyNews], None], look_seconds: float = LOOK_SECONDS
    ) -> None:
        """Reads the file; raises PolicyError. None = observe everything."""
        self._path = path
        self._look_seconds = look_seconds
        self._told = told
        self._lock = threading.Lock()
        self._text = b"" if path is None else _read(path)
        self._policy = parse(self._text)
        self._loaded_at = datetime.now(UTC)
        self._looked_at = time.monotonic()
        told(PolicyNews(policy=self._policy, valid=True, loaded_at=self._loaded_at))

    def current(self) -> Policy:
        with self._lock:
            return self._policy

    def refresh(self) -> None:
        """Take over a changed file, or say why not. Quick when there is nothing new."""
        if self._path is None or time.monotonic() - self._looked_at < self._look_seconds:
            return
        self._looked_at = time.monotonic()
        try:
            text = _read(self._path)
            if text == self._text:
                return
            self._text = text
            policy = parse(text)
        except PolicyError as error:
            self._refuse(error)
            return
        with self._lock:
            self._policy = policy
            self._loaded_at = datetime.now(UTC)
        log.info("policy taken over file=%s rules=%d", self._path, len(policy.rules))
        self._told(PolicyNews(policy=policy, valid=True, loaded_at=self._loaded_at))

    def _refuse(self, error: PolicyError) -> None:
        log.error("policy refused, the last good one stays in force file=%s problems=%s", self._path, error)
        news = PolicyNews(policy=self.current(), valid=False, problems=tuple(error.problems), loaded_at=self._loaded_at)
        self._told(news)


def parse(text: bytes) -> Policy:
    """The policy in YAML `text`; raises PolicyError."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        place = f"line {where.line + 1}, column {where.column + 1}: " if where else ""
        raise PolicyError([f"{place}not YAML: {getattr(error, 'problem', None) or 'cannot be read'}"]) from error
    return load_policy(raw)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolicyError([f"{path} cannot be read: {error.strerror}"]) from error
