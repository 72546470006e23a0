"""A worker's process that does what a test says; it keeps state and can refuse to die."""

from collections.abc import Callable
from dataclasses import dataclass, field

from exporter.messages import BrokenStream, Message, WorkerSettings


@dataclass
class FakeProcess:
    """What the crew sees of a worker."""

    settings: WorkerSettings
    started: float
    pid: int
    descriptor: int = -1
    said: list[Message] = field(default_factory=list)
    last_words: list[Message] = field(default_factory=list)
    process_state: str = "S"
    closed: bool = False
    garbled: bool = False
    unkillable: bool = False
    ended: bool = False

    def receive(self) -> list[Message] | None:
        """What it has said since the last call."""
        if self.garbled:
            raise BrokenStream("noise")
        messages, self.said = self.said, []
        return messages or (None if self.closed else [])

    def state(self) -> str:
        """One letter."""
        return self.process_state

    def end(self) -> bool:
        """Refuses when it is told to."""
        self.last_words, self.said = self.said, []
        self.ended = not self.unkillable
        return self.ended

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.ended

    def exit_sentence(self) -> str:
        """How it ended."""
        return "killed by signal 11"


@dataclass
class FakeWorkers:
    """Starts fake processes and remembers each."""

    started: list[FakeProcess] = field(default_factory=list)
    shape: Callable[[FakeProcess], None] | None = None
    """Applied to each new process, e.g. to make it unkillable."""

    def __call__(self, settings: WorkerSettings, now: float) -> FakeProcess:
        """The crew's way to start one."""
        process = FakeProcess(settings=settings, started=now, pid=100 + len(self.started))
        if self.shape is not None:
            self.shape(process)
        self.started.append(process)
        return process

    @property
    def last(self) -> FakeProcess:
        """The youngest."""
        return self.started[-1]
