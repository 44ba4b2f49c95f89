"""Embeddings in one store: what is there, or on its way there, is not encoded again, whoever asked for it first."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from epdsim.fleet.clock import Steps
from epdsim.fleet.composer import ec_params
from epdsim.fleet.encode import EncodeItem
from epdsim.fleet.faults import RequestLostError
from epdsim.fleet.health import Health
from epdsim.fleet.lines import Lines
from epdsim.fleet.orchestrators.encoding import Encoding, Grouping, items_of
from epdsim.fleet.orchestrators.task import Handles, Task
from epdsim.fleet.world import World


class StoreEncoding(Encoding):
    """Has embeddings in the fleet's store; a request has a lease on each of its own until it ends."""

    def __init__(
        self, world: World, body: Lines, health: Health | None, group: Grouping, *, shares_legs: bool = False
    ) -> None:
        super().__init__(world, body, health, group, shares_legs=shares_legs)
        self._encoding: dict[str, simpy.Event] = {}
        self._given_up: set[str] = set()

    def encode(self, task: Task) -> Steps:
        """Reserve what nobody has asked for yet, send it, and wait for all that is not complete."""
        store, fresh, pending = self._world.ec_store, list[EncodeItem](), dict[str, simpy.Event]()
        for item in items_of(task):
            if not store.is_ready(item.mm_hash) and not store.is_reserved(item.mm_hash):
                store.reserve(item.mm_hash, item.embedding_bytes)
                self._encoding[item.mm_hash] = self._world.env.event()
                fresh.append(item)
            if store.is_reserved(item.mm_hash):
                pending[item.mm_hash] = self._encoding[item.mm_hash]
            store.pin(item.mm_hash)
            task.leased.append(item.mm_hash)
        if fresh:
            self.send(task, fresh, {item.mm_hash: pending[item.mm_hash] for item in fresh})
        if pending:
            yield simpy.AllOf(self._world.env, list(pending.values()))
        task.handles = Handles(ec_params(task.rendered), frozenset(task.rendered.media))

    def release(self, task: Task) -> None:
        """Give leases back; an entry that nobody will fill goes with the last of them."""
        store = self._world.ec_store
        for mm_hash in task.leased:
            store.unpin(mm_hash)
            if mm_hash in self._given_up and not store.is_pinned(mm_hash):
                store.evict(mm_hash)
                self._given_up.discard(mm_hash)

    def give_up(self, items: Sequence[EncodeItem], done: Sequence[simpy.Event], error: RequestLostError) -> None:
        """All who wait for them fail."""
        self._given_up.update(item.mm_hash for item in items if not self._world.ec_store.is_ready(item.mm_hash))
        for event in done:
            event.fail(error)
            event.defused = True
