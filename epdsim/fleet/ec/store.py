"""Kind `store`: encoders write embeddings into one store, from which every engine reads (vLLM's example connector)."""

from __future__ import annotations

from epdsim.core.ec.store import EcStore
from epdsim.core.plan import StepPlan
from epdsim.events import EcLoaded
from epdsim.fleet.ec.consumer import Consumer, Engine
from epdsim.fleet.encode import EncodeItem, EncodeJob
from epdsim.fleet.lines import Line
from epdsim.fleet.world import World


class SharedKeeper:
    """The store, as what loses embeddings in a fault.

    Args:
        store: The fleet's.
    """

    name = "ec-store"

    def __init__(self, store: EcStore) -> None:
        self._store = store

    def evict(self) -> list[str]:
        """Drop every entry that nobody has a lease on."""
        return self._store.evict_unleased()


class StoreProducer:
    """Writes into the store what the orchestrator has reserved.

    Args:
        store: The fleet's.
    """

    def __init__(self, store: EcStore) -> None:
        self._store = store

    def has(self, item: EncodeItem) -> bool:
        """Whether an earlier attempt wrote it."""
        return self._store.is_ready(item.mm_hash)

    def publish(self, job: EncodeJob, item: EncodeItem) -> None:
        """Write it; the hash says where it is."""
        del job
        if not self._store.is_ready(item.mm_hash):
            self._store.publish(item.mm_hash)

    def lose(self) -> None:
        """What is in the store stays."""

    def come_back(self) -> None:
        """Nothing was lost."""


class StoreConsumer(Consumer):
    """Reads within the step, one embedding after the other over the engine's link."""

    def planned(self, plan: StepPlan) -> float:
        """Read what the step loads."""
        if not plan.ec_loads:
            return 0.0
        store, now_ms = self._world.ec_store, self._world.env.now
        sizes = [store.touch(mm_hash) for mm_hash in plan.ec_loads]
        for mm_hash, nbytes in zip(plan.ec_loads, sizes, strict=True):
            self._world.emit(EcLoaded(now_ms, self._engine.name, mm_hash, nbytes))
        return self._line.send(sizes)


class StoreSides:
    """The two sides of a store.

    Args:
        world: Has it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.keepers = [SharedKeeper(world.ec_store)]

    def producer(self, name: str) -> StoreProducer:
        """An encode instance's."""
        del name
        return StoreProducer(self._world.ec_store)

    def consumer(self, engine: Engine, line: Line) -> StoreConsumer:
        """An engine's."""
        return StoreConsumer(self._world, engine, line)
