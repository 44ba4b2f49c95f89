"""The encode stage: legs to encoders, and what is sent again when an encoder is lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import simpy

from epdsim.events import InstanceChosen, LegRetried, LegSent
from epdsim.fleet.clock import Steps
from epdsim.fleet.composer import body_bytes, encode_calls, push_request, raw_encode_call, shared_encode_call
from epdsim.fleet.encode import EncodeInstance, EncodeItem, EncodeJob
from epdsim.fleet.faults import RequestLostError
from epdsim.fleet.health import Health
from epdsim.fleet.lines import Lines
from epdsim.fleet.orchestrators.task import Task
from epdsim.fleet.routing import router
from epdsim.fleet.telling import NAME
from epdsim.fleet.world import World

LOST = "{} was lost with its instance {} times, and no more than {} retries are allowed"
"""Of what could not be done again."""


@dataclass(slots=True)
class EncodeLeg:
    """Items that go to an encoder in one call."""

    instance: EncodeInstance
    items: list[EncodeItem]


Take = Callable[[EncodeItem], EncodeInstance]
"""Chooses an encoder for an item, and counts the item as its."""

Grouping = Callable[[Sequence[EncodeItem], Take], Iterator[EncodeLeg]]
"""How a style spreads the items of a request over encoders, and which of them share a leg."""

Done = Mapping[str, simpy.Event]
"""By identifier of an item, what fires when the leg that it is in is answered."""


class Encoding(ABC):
    """Has items encoded; kinds differ in who may use what was encoded for another request.

    Args:
        world: Clock, configuration, sinks.
        body: What bodies travel on.
        health: Knows which instances are lost; None when none ever is.
        group: Of the style.
        shares_legs: Whether items can share a leg, so that choices are told apart from legs.

    Attributes:
        encoders: Encode instances.
    """

    def __init__(
        self, world: World, body: Lines, health: Health | None, group: Grouping, *, shares_legs: bool = False
    ) -> None:
        self._world, self._body, self._health = world, body, health
        self._group, self._shares_legs = group, shares_legs
        config = world.config
        self._sends_raw = config.encode is not None and bool(config.encode.front_ends)
        self._choose = router(config.router_of(config.encode), world.now_ms, config.router_stale_ms)
        self.encoders: Sequence[EncodeInstance] = ()

    @abstractmethod
    def encode(self, task: Task) -> Steps:
        """Have the embeddings of a request's items, and say so in its handles."""

    @abstractmethod
    def release(self, task: Task) -> None:
        """The request has ended."""

    @abstractmethod
    def give_up(self, items: Sequence[EncodeItem], done: Sequence[simpy.Event], error: RequestLostError) -> None:
        """Items will not be encoded."""

    def send(self, task: Task, items: Sequence[EncodeItem], done: Done) -> None:
        """Send some items of a request to encoders."""
        if self._health is None:
            self._send_legs(task, items, done, self.encoders)
        else:
            self._world.env.process(self._send_to_living(task, items, done, self._health))

    def encode_again(self, job: EncodeJob, instance: EncodeInstance) -> None:
        """A leg was lost with its encoder: send it again, or let all who wait for it fail."""
        assert self._health is not None, "only what can be lost is"
        world, max_retries = self._world, self._world.config.max_retries
        instance.outstanding -= job.num_left
        if job.attempts > max_retries:
            told = LOST.format("an item" if len(job.items) == 1 else "a leg", job.attempts, max_retries)
            self.give_up(job.items, job.done, RequestLostError(told))
            return
        world.emit(LegRetried(world.env.now, NAME, job.request_id, "encode", instance.name, job.attempts))
        world.env.process(self._dispatch_to_living(job, self._health))

    def _send_to_living(self, task: Task, items: Sequence[EncodeItem], done: Done, health: Health) -> Steps:
        try:
            pool = yield from health.up(self.encoders, "encode")
        except RequestLostError as error:
            self.give_up(items, list(done.values()), error)
        else:
            self._send_legs(task, items, done, pool)

    def _send_legs(self, task: Task, items: Sequence[EncodeItem], done: Done, pool: Sequence[EncodeInstance]) -> None:
        world, prompt = self._world, task.rendered.prompt

        def take(item: EncodeItem) -> EncodeInstance:
            instance = self._choose(pool, prompt, [item.mm_hash])
            instance.outstanding += 1
            if self._shares_legs:
                world.emit(InstanceChosen(world.env.now, NAME, task.request_id, "encode", instance.name))
            return instance

        consumer, calls = task.consumer.name if task.consumer is not None else "", encode_calls(task.rendered)
        for leg in self._group(items, take):
            hashes = [item.mm_hash for item in leg.items]
            call = calls[hashes[0]] if len(hashes) == 1 else shared_encode_call(task.rendered, hashes)
            if self._sends_raw:
                call = raw_encode_call(task.rendered, call, hashes)
            if consumer:
                call = replace(call, ec_transfer_params=push_request(leg.items, consumer))
            events = [done[mm_hash] for mm_hash in hashes]
            job = EncodeJob(task.request_id, leg.items, prompt, body_bytes(call), events, consumer)
            self._dispatch(job, leg.instance)

    def _dispatch(self, job: EncodeJob, instance: EncodeInstance) -> None:
        """Queue a leg at an encoder once its body has arrived."""
        world = self._world
        payload = "deferred" if self._sends_raw else "full"
        world.emit(LegSent(world.env.now, NAME, job.request_id, "encode", instance.name, job.body_bytes, payload))
        way = self._body.to(instance.name).transfer([job.body_bytes], world.config.costs.hop_ms)
        way.callbacks.append(lambda _: instance.submit(job))

    def _dispatch_to_living(self, job: EncodeJob, health: Health) -> Steps:
        try:
            pool = yield from health.up(self.encoders, "encode")
        except RequestLostError as error:
            self.give_up(job.items, job.done, error)
        else:
            instance = self._choose(pool, job.prompt, [item.mm_hash for item in job.items])
            instance.outstanding += len(job.items)
            self._dispatch(job, instance)


def items_of(task: Task) -> list[EncodeItem]:
    """The distinct items of a request, in order of first occurrence."""
    found = {
        one.mm_hash: EncodeItem(
            one.mm_hash,
            one.raw.modality,
            one.pixels,
            one.media.encoder_patches,
            one.media.num_embeds,
            one.media.embedding_bytes,
        )
        for one in task.rendered.items
    }
    return list(found.values())
