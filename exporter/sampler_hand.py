"""One worker as the crew sees it: its process and its last mark; and the probe, a worker for one GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from exporter.messages import Attached, BrokenStream, Mark, Message, Swept, WorkerSettings
from exporter.watchdog import FINE, State, Verdict, Watch, judge


class Process(Protocol):
    """What the crew needs of a worker's process; `worker_process.WorkerProcess` is the real one."""

    settings: WorkerSettings
    started: float
    descriptor: int
    last_words: list[Message]
    """What was still in the pipe when it ended."""

    @property
    def pid(self) -> int: ...

    def receive(self) -> list[Message] | None: ...

    def state(self) -> str: ...

    def end(self) -> bool: ...

    def is_gone(self) -> bool: ...

    def exit_sentence(self) -> str: ...


Start = Callable[[WorkerSettings, float], Process]
"""Starts a worker; the second argument is the time on the monotonic clock."""


@dataclass
class Hand:
    """A running worker."""

    process: Process
    mark: Mark | None = None

    def verdict(self, attentive_since: float, now: float) -> Verdict:
        """Whether it gets on."""
        watch = Watch(
            started=self.process.started,
            attentive_since=attentive_since,
            process_state=self.process.state(),
            probe_timeout_seconds=self.process.settings.probe_timeout_seconds,
        )
        return judge(self.mark, watch, now)


class Probe(Hand):
    """A worker that tries the one GPU that hung, so that a second hang costs nobody else anything."""

    hung = False
    """Whether a call on the GPU did not return. A probe that died or found no driver says nothing about the GPU."""

    def answered(self, attentive_since: float, now: float) -> bool | None:
        """Whether the GPU answered (that it is lost is an answer too); None = not yet known."""
        try:
            messages = self.process.receive()
        except BrokenStream:
            return False
        if messages is None:
            return False
        for message in messages:
            match message:
                case Mark():
                    self.mark = message
                case Swept():
                    return True
                case Attached(unattached=unattached) if unattached:
                    return True
                case _:
                    pass
        verdict = self.verdict(attentive_since, now)
        self.hung = verdict.state is State.HUNG_GPU
        return None if verdict is FINE else False
