"""An encode-only instance: it batches what waits, runs the encoder and publishes the embeddings."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from epdsim.core.records import record
from epdsim.events import EncodeFinished, EncodeRunFinished
from epdsim.fleet.world import World


@record
class EncodeJob:
    """One item to encode.

    Attributes:
        request_id: Who asked first.
        mm_hash: Identifier in the EC store, already reserved.
        patches: Work for the encoder.
        embedding_bytes: Size of the result.
        done: Fires when the embedding is ready.
    """

    request_id: str
    mm_hash: str
    patches: int
    embedding_bytes: int
    done: simpy.Event


class EncodeInstance:
    """One encoder; its life: idle until an item waits, then batch after batch.

    Attributes:
        name: For events.
        outstanding: Items sent to it and not finished, in the orchestrator's books; what routers may see.
    """

    def __init__(self, world: World, name: str, max_batch_items: int) -> None:
        self.name, self.outstanding = name, 0
        self._world, self._max_batch_items = world, max_batch_items
        self._waiting: deque[EncodeJob] = deque()
        self._wake = world.env.event()
        world.env.process(self._run())

    def submit(self, job: EncodeJob) -> None:
        """Queue an item."""
        self._waiting.append(job)
        if not self._wake.triggered:
            self._wake.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        world = self._world
        while True:
            if not self._waiting:
                self._wake = world.env.event()
                yield self._wake
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch_items))]
            duration_ms = world.config.costs.encode.encode_ms([job.patches for job in batch])
            yield world.after(duration_ms)
            world.emit(EncodeRunFinished(world.env.now, self.name, len(batch), len(self._waiting), duration_ms))
            for job in batch:
                world.ec_store.publish(job.mm_hash)
                self.outstanding -= 1
                world.emit(EncodeFinished(world.env.now, self.name, job.request_id, [job.mm_hash], job.embedding_bytes))
                job.done.succeed()
