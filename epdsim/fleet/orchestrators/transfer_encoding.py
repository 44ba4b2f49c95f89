"""Embeddings that go from one encoder to one engine: every request has its items encoded, or found, at encoders of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import simpy

from epdsim.core.request import EcOffer
from epdsim.fleet.clock import Steps
from epdsim.fleet.composer import ec_descriptor, push_offer
from epdsim.fleet.encode import EncodeItem
from epdsim.fleet.faults import RequestLostError
from epdsim.fleet.orchestrators.encoding import Encoding, items_of
from epdsim.fleet.orchestrators.task import NO_HANDLES, Handles, Task


class TransferEncoding(Encoding):
    """Has embeddings offered (pull), or pushed to the engine that was chosen (push)."""

    def encode(self, task: Task) -> Steps:
        """Send all items, under names of this attempt alone, and wait for the answers."""
        task.num_encodes += 1
        names = [f"{task.request_id}:{place}:{task.num_encodes}" for place in range(len(task.mm_hashes))]
        items = [replace(item, transfer_id=name) for item, name in zip(items_of(task), names, strict=True)]
        if not items:
            task.handles = NO_HANDLES
            return
        done = {item.mm_hash: self._world.env.event() for item in items}
        self.send(task, items, done)
        yield simpy.AllOf(self._world.env, list(done.values()))
        offers: dict[str, EcOffer] = {name: event.value for name, event in done.items() if event.value is not None}
        if task.consumer is not None:
            params = push_offer(items)
        else:
            media = task.rendered.media
            params = {name: ec_descriptor(media[name]) for name in offers}
        task.handles = Handles(params, offers=offers)

    def release(self, task: Task) -> None:
        """Nobody holds anything for it."""

    def give_up(self, items: Sequence[EncodeItem], done: Sequence[simpy.Event], error: RequestLostError) -> None:
        """The request that sent them fails."""
        del items
        for event in done:
            event.fail(error)
            event.defused = True
