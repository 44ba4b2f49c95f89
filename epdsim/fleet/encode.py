"""An encode-only instance: it batches what waits, runs the encoder and hands the embeddings on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from epdsim.core.prompt import RunPrompt
from epdsim.core.records import record
from epdsim.core.request import EcOffer
from epdsim.events import EncodeFinished, EncodeRunFinished, EncodeSpared, LegRecovered
from epdsim.fleet.config import EncodePool
from epdsim.fleet.encode_front import FrontEnd
from epdsim.fleet.faults import Pace
from epdsim.fleet.world import World

if TYPE_CHECKING:
    from epdsim.fleet.ec.producer import Producer


@record
class EncodeItem:
    """One item to encode.

    Attributes:
        mm_hash: Its identifier.
        modality: `"image"`, `"video"` or `"audio"`.
        pixels: Work for the front end, over all frames.
        patches: Work for the encoder.
        num_embeds: Embeddings that come of it.
        embedding_bytes: Their size.
        transfer_id: Name of the transfer that brings them to the consumer; empty where nothing is pushed.
    """

    mm_hash: str
    modality: str
    pixels: int
    patches: int
    num_embeds: int
    embedding_bytes: int
    transfer_id: str = ""

    @property
    def file_pixels(self) -> int:
        """As of `RenderedItem`."""
        return self.pixels if self.modality == "image" else 0


@dataclass(slots=True)
class EncodeJob:
    """One encode leg.

    Attributes:
        request_id: Who asked.
        items: What is to be encoded.
        prompt: That of the request, for whoever chooses an instance.
        body_bytes: Of the call.
        done: One for each item; fire when all of them are encoded, with what is offered of it.
        consumer: Name of the engine to push them to; empty where nothing is pushed.
        attempts: How often it was lost with an instance so far.
        lost_ms: When it last was; negative when it never was.
        num_left: Items that are not done at the instance where it is.
        offers: What the answer says of those that are, by identifier.
    """

    request_id: str
    items: Sequence[EncodeItem]
    prompt: RunPrompt
    body_bytes: int
    done: Sequence[simpy.Event]
    consumer: str = ""
    attempts: int = 0
    lost_ms: float = -1.0
    num_left: int = field(init=False, default=0)
    offers: dict[str, EcOffer | None] = field(init=False, default_factory=dict[str, EcOffer | None])


Waiting = tuple[EncodeJob, EncodeItem]


class EncodeInstance:
    """One encoder; its life: idle until an item waits, then batch after batch.

    Attributes:
        name: For events.
        outstanding: Items sent to it and not finished, in the orchestrator's books; what routers may see.
        is_up: Whether the orchestrator takes it for alive.
        producer: Its side of the hand-over of embeddings.

    Args:
        world: Clock, sinks.
        name: For events.
        pool: What all encode instances have in common.
        producer: Its side of the hand-over of embeddings.
        again: Takes a job that was lost here.
    """

    def __init__(
        self,
        world: World,
        name: str,
        pool: EncodePool,
        producer: Producer,
        again: Callable[[EncodeJob, EncodeInstance], None],
    ) -> None:
        self.name, self.outstanding, self.is_up, self.producer = name, 0, True, producer
        self._again, self._is_lost = again, False
        self._lost: list[EncodeJob] = []
        self._batch: list[Waiting] = []
        faults = world.config.faults
        spans = faults.slow_encoders.get(name) if faults is not None and faults.slow_encoders else None
        self._pace = Pace(spans) if spans else None
        self._world, self._max_batch_items = world, pool.max_batch_items
        self._front_end = FrontEnd(world, pool.front_ends, self._queue) if pool.front_ends else None
        self._waiting: deque[Waiting] = deque()
        self._wake = world.env.event()
        self._life = world.env.process(self._run())

    def submit(self, job: EncodeJob) -> None:
        """Take a leg: render it first where it brings raw media, then queue it."""
        if self._is_lost:
            self._lose_job(job)
            if not self.is_up:
                self.give_up_lost()
        elif self._front_end is not None:
            self._front_end.render(job)
        else:
            self._queue(job)

    def _queue(self, job: EncodeJob) -> None:
        job.num_left = len(job.items)
        self._waiting.extend((job, item) for item in job.items)
        if not self._wake.triggered:
            self._wake.succeed()

    def lose(self) -> None:
        """End: what waits, what is in the run under way, and what is kept is lost."""
        self._is_lost = True
        for job in self._front_end.lose() if self._front_end is not None else ():
            self._lose_job(job)
        for job in {id(job): job for job, _ in (*self._batch, *self._waiting)}.values():
            self._lose_job(job)
        self._batch = []
        self._waiting.clear()
        self.producer.lose()
        self._life.interrupt()

    def give_up_lost(self) -> None:
        """Hand what was lost here back to the orchestrator."""
        lost, self._lost = self._lost, []
        for job in lost:
            self._again(job, self)

    def come_back(self) -> None:
        """Begin anew."""
        self._is_lost = False
        self.producer.come_back()
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
            self._take_batch()
            if not self._batch:
                continue
            patches = {item.mm_hash: item.patches for _, item in self._batch}
            duration_ms = world.config.costs.encode.encode_ms(list(patches.values()))
            if self._pace is not None:
                duration_ms = self._pace.end_ms(world.env.now, duration_ms) - world.env.now
            yield world.after(duration_ms)
            world.emit(EncodeRunFinished(world.env.now, self.name, len(patches), len(self._waiting), duration_ms))
            batch, self._batch = self._batch, []
            for job, item in batch:
                if item.mm_hash in patches:
                    del patches[item.mm_hash]
                    self._finish(job, item, is_spared=False)
                else:
                    self._finish(job, item, is_spared=True)

    def _take_batch(self) -> None:
        """What the next run takes; what is at hand needs none, and items of the same content one."""
        self._batch, distinct = [], set[str]()
        while self._waiting and len(distinct) < self._max_batch_items:
            job, item = self._waiting.popleft()
            if self.producer.has(item):
                self._finish(job, item, is_spared=True)
                continue
            distinct.add(item.mm_hash)
            self._batch.append((job, item))

    def _finish(self, job: EncodeJob, item: EncodeItem, *, is_spared: bool) -> None:
        """An item's embeddings are at hand: hand them on; its leg is answered with the last of its items."""
        world = self._world
        job.offers[item.mm_hash] = self.producer.publish(job, item)
        self.outstanding -= 1
        if is_spared:
            world.emit(EncodeSpared(world.env.now, self.name, job.request_id, [item.mm_hash]))
        else:
            world.emit(EncodeFinished(world.env.now, self.name, job.request_id, [item.mm_hash], item.embedding_bytes))
        job.num_left -= 1
        if job.num_left:
            return
        if job.attempts:
            world.emit(LegRecovered(world.env.now, self.name, job.request_id, job.lost_ms))
        for one, event in zip(job.items, job.done, strict=True):
            event.succeed(job.offers[one.mm_hash])
