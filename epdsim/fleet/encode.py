"""An encode-only instance: it batches what waits, runs the encoder and publishes the embeddings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from epdsim.core.prompt import RunPrompt
from epdsim.events import EncodeFinished, EncodeRunFinished, LegRecovered
from epdsim.fleet.faults import Pace
from epdsim.fleet.world import World


@dataclass(slots=True)
class EncodeJob:
    """One item to encode.

    Attributes:
        request_id: Who asked first.
        mm_hash: Identifier in the EC store, already reserved.
        patches: Work for the encoder.
        embedding_bytes: Size of the result.
        prompt: That of the request, for whoever chooses an instance.
        body_bytes: Of the call.
        done: Fires when the embedding is ready.
        attempts: How often it was lost with an instance so far.
        lost_ms: When it last was; negative when it never was.
    """

    request_id: str
    mm_hash: str
    patches: int
    embedding_bytes: int
    prompt: RunPrompt
    body_bytes: int
    done: simpy.Event
    attempts: int = 0
    lost_ms: float = -1.0


class EncodeInstance:
    """One encoder; its life: idle until an item waits, then batch after batch.

    Attributes:
        name: For events.
        outstanding: Items sent to it and not finished, in the orchestrator's books; what routers may see.
        is_up: Whether the orchestrator takes it for alive.

    Args:
        world: Clock, store, sinks.
        name: For events.
        max_batch_items: Items that one run takes at most.
        again: Takes a job that was lost here.
    """

    def __init__(
        self, world: World, name: str, max_batch_items: int, again: Callable[[EncodeJob, EncodeInstance], None]
    ) -> None:
        self.name, self.outstanding, self.is_up = name, 0, True
        self._again, self._is_lost = again, False
        self._lost: list[EncodeJob] = []
        self._batch: list[EncodeJob] = []
        faults = world.config.faults
        spans = faults.slow_encoders.get(name) if faults is not None and faults.slow_encoders else None
        self._pace = Pace(spans) if spans else None
        self._world, self._max_batch_items = world, max_batch_items
        self._waiting: deque[EncodeJob] = deque()
        self._wake = world.env.event()
        self._life = world.env.process(self._run())

    def submit(self, job: EncodeJob) -> None:
        """Queue an item."""
        if self._is_lost:
            self._lose_job(job)
            if not self.is_up:
                self.give_up_lost()
            return
        self._waiting.append(job)
        if not self._wake.triggered:
            self._wake.succeed()

    def lose(self) -> None:
        """End: what waits and what is in the run under way is lost."""
        self._is_lost = True
        for job in (*self._batch, *self._waiting):
            self._lose_job(job)
        self._batch = []
        self._waiting.clear()
        self._life.interrupt()

    def give_up_lost(self) -> None:
        """Hand what was lost here back to the orchestrator."""
        lost, self._lost = self._lost, []
        for job in lost:
            self._again(job, self)

    def come_back(self) -> None:
        """Begin anew."""
        self._is_lost = False
        self._life = self._world.env.process(self._run())

    def _lose_job(self, job: EncodeJob) -> None:
        job.attempts += 1
        job.lost_ms = self._world.env.now
        self._lost.append(job)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        try:
            yield from self._work()
        except simpy.Interrupt:
            return

    def _work(self) -> Generator[simpy.Event, Any, None]:
        world = self._world
        while True:
            if not self._waiting:
                self._wake = world.env.event()
                yield self._wake
            batch = self._batch = [
                self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch_items))
            ]
            duration_ms = world.config.costs.encode.encode_ms([job.patches for job in batch])
            if self._pace is not None:
                duration_ms = self._pace.end_ms(world.env.now, duration_ms) - world.env.now
            yield world.after(duration_ms)
            world.emit(EncodeRunFinished(world.env.now, self.name, len(batch), len(self._waiting), duration_ms))
            self._batch = []
            for job in batch:
                world.ec_store.publish(job.mm_hash)
                self.outstanding -= 1
                world.emit(EncodeFinished(world.env.now, self.name, job.request_id, [job.mm_hash], job.embedding_bytes))
                if job.attempts:
                    world.emit(LegRecovered(world.env.now, self.name, job.request_id, job.lost_ms))
                job.done.succeed()
