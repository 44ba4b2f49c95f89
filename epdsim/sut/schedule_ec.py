"""What is beyond an engine's EC connector while a recorded workload is played: the store, producers, consumers.

It goes by steps and by what the engine says; it is the same for the model and for a real scheduler, and notes what was said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from epdsim.core.ec.connector import NOTHING_TO_DO
from epdsim.core.ec.serve import Answer
from epdsim.sut.schedule_records import RecordedEc, RecordedWorkload


class FarRead(NamedTuple):
    """A read under way: the step at which it ends, None for never, and how."""

    end: int | None
    is_good: bool


class FarSide:
    """The far side of one engine.

    Args:
        workload: Its part `ec` is played; without it there is a store that only grows.

    Attributes:
        stored: Identifiers in the shared store; a live collection.
        ec: What is played.
        now: The step.
        done: What workers have copied by the update that is handed in now.
        said: What the engine said in this step, for the recording.
    """

    def __init__(self, workload: RecordedWorkload) -> None:
        self.ec = workload.ec or RecordedEc()
        self.stored = set(workload.ec_store or ())
        self.now = -1
        self.done = NOTHING_TO_DO
        self.said: dict[str, list[Any]] = {}
        self._serving = {(one.producer, one.identifier): one for one in self.ec.far}
        self._answers: list[tuple[int, str, str]] = []
        self._reading: dict[tuple[str, str], FarRead] = {}
        self._asks = list(self.ec.asks)
        self._reads: list[tuple[int, str, str]] = []
        self._lost = list(self.ec.lost)

    @property
    def pulls(self) -> bool:
        """Whether the connector pulls."""
        return self.ec.kind == "pull"

    def begin(self, step: int) -> None:
        """A step begins, and with it what others do."""
        self.now, self.said = step, defaultdict(list)
        for number, what, identifier in self.ec.events:
            if number == step:
                self.stored.add(identifier) if what == "stored" else self.stored.discard(identifier)

    def ask(self, producer: str, identifier: str) -> None:
        """The engine asks a producer."""
        self.said["ec_asked"].append([producer, identifier])
        steps = self._serving[producer, identifier].answer_steps
        if steps is not None:
            self._answers.append((self.now + steps, producer, identifier))

    def answers(self) -> Sequence[tuple[str, str, Answer]]:
        """Answers that have come since the last look, in the order in which they came: not every engine looks in every step."""
        due = sorted((one for one in self._answers if one[0] <= self.now), key=lambda one: one[0])
        self._answers = [one for one in self._answers if one[0] > self.now]
        return [(producer, identifier, self._answer(at, producer, identifier)) for at, producer, identifier in due]

    def begin_read(self, producer: str, identifier: str) -> FarRead:
        """The engine reads what it was granted."""
        self.said["ec_begun"].append([producer, identifier])
        one = self._serving[producer, identifier]
        read = FarRead(None if one.read_steps is None else self.now + one.read_steps, one.is_good)
        self._reading[producer, identifier] = read
        return read

    def is_over(self, read: FarRead) -> bool:
        """Whether a read has ended."""
        return read.end is not None and read.end <= self.now

    def ended_reads(self) -> Iterable[tuple[str, str, bool]]:
        """Reads that are over, each told once; one that was begun again is forgotten."""
        for key, read in list(self._reading.items()):
            if self.is_over(read):
                del self._reading[key]
                yield *key, read.is_good

    def lost_producers(self) -> Sequence[str]:
        """Producers that went away since the last look."""
        due = [producer for step, producer in self._lost if step <= self.now]
        self._lost = [one for one in self._lost if one[0] > self.now]
        return due

    def asks(self) -> Sequence[tuple[str, str]]:
        """`(consumer, identifier)` of asks since the last look."""
        due = [(one.consumer, one.identifier) for one in self._asks if one.step <= self.now]
        self._asks = [one for one in self._asks if one.step > self.now]
        return due

    def hear(self, consumer: str, identifier: str, answer: Answer) -> None:
        """The engine answers a consumer."""
        self.said["ec_answers"].append([consumer, identifier, answer.value])
        if answer is Answer.GRANTED:
            steps = next(
                one.read_steps for one in self.ec.asks if (one.consumer, one.identifier) == (consumer, identifier)
            )
            if steps is not None:
                self._reads.append((self.now + steps, consumer, identifier))

    def finished_reads(self) -> Sequence[tuple[str, str]]:
        """Consumers that have read what they were granted, since the last look."""
        due = [(consumer, identifier) for at, consumer, identifier in self._reads if at <= self.now]
        self._reads = [one for one in self._reads if one[0] > self.now]
        return due

    def announce(self, request_id: str, offers: Mapping[str, int | None]) -> None:
        """A request of the engine has ended, and says what it has to offer."""
        self.said["ec_announced"].append([request_id, dict(offers)])

    def _answer(self, at: int, producer: str, identifier: str) -> Answer:
        one = self._serving[producer, identifier]
        if not one.is_compatible:
            return Answer.INCOMPATIBLE
        if at < one.ready:
            return Answer.NOT_READY
        return Answer.MISSING if one.gone is not None and at >= one.gone else Answer.GRANTED
