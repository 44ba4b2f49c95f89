"""The processes that bring about what goes wrong, and what the orchestrator knows of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import simpy

from epdsim.events import EcEvicted, InstanceBack, InstanceLost
from epdsim.fleet.faults import Faults, Loss, RequestLostError


class Surroundings(Protocol):
    """What of a world faults need."""

    @property
    def env(self) -> simpy.Environment:
        """The clock."""
        ...

    def after(self, duration_ms: float) -> simpy.Event:
        """Fires after a duration."""
        ...

    def emit(self, event: Any, /) -> None:
        """Tell an event."""
        ...


class Mortal(Protocol):
    """An instance that can be lost.

    Attributes:
        is_up: Whether the orchestrator takes it for alive.
    """

    name: str
    is_up: bool

    def lose(self) -> None:
        """End, with all that it holds."""
        ...

    def give_up_lost(self) -> None:
        """Tell callers that what they wait for was lost."""
        ...

    def come_back(self) -> None:
        """Begin anew."""
        ...


class Health:
    """What the orchestrator knows of its instances.

    Args:
        world: Clock.
        faults: How long it waits.
    """

    def __init__(self, world: Surroundings, faults: Faults) -> None:
        self._world, self._faults = world, faults
        self._back = world.env.event()

    def up(
        self, pool: Sequence[Any], stage: str, beside: Sequence[simpy.Event] = ()
    ) -> Generator[simpy.Event, Any, Sequence[Any]]:
        """Instances of a pool that are up, once there are any.

        Args:
            pool: All of them.
            stage: What they do, for the reason.
            beside: What the caller waits for too; when it fails, so does this.

        Raises:
            RequestLostError: None comes back in time.
        """
        patience = None
        while not (found := [one for one in pool if one.is_up]):
            if patience is None:
                patience = self._world.after(self._faults.give_up_ms)
            if patience.processed:
                waited = f"{self._faults.give_up_ms:g} ms"
                raise RequestLostError(f"every {stage} instance is lost, and none came back within {waited}")
            yield simpy.AnyOf(self._world.env, [self._back, patience, *beside])
        return found

    def watch(self, losses: Sequence[Loss], instance: Mortal) -> Generator[simpy.Event, Any, None]:
        """The process of the losses of one instance, in order of time; it is back before it is lost again at the same moment."""
        for loss in losses:
            yield from self._lose(loss, instance)

    def _lose(self, loss: Loss, instance: Mortal) -> Generator[simpy.Event, Any, None]:
        world, faults = self._world, self._faults
        yield world.after(max(loss.at_ms - world.env.now, 0.0))
        instance.lose()
        world.emit(InstanceLost(world.env.now, instance.name))
        away_ms = faults.detect_ms if loss.back_ms is None else min(faults.detect_ms, loss.back_ms - loss.at_ms)
        if away_ms:
            yield world.after(away_ms)
        instance.is_up = False
        instance.give_up_lost()
        if loss.back_ms is None:
            return
        yield world.after(loss.back_ms - loss.at_ms - away_ms)
        world.emit(InstanceBack(world.env.now, instance.name))
        instance.come_back()
        instance.is_up = True
        back, self._back = self._back, world.env.event()
        back.succeed()


class Evictable(Protocol):
    """What keeps embeddings and can lose them."""

    name: str

    def evict(self) -> list[str]:
        """Drop all that nobody reads; its identifiers."""
        ...


def evict(world: Surroundings, at_ms: float, keepers: Sequence[Evictable]) -> Generator[simpy.Event, Any, None]:
    """The process of one loss of embeddings."""
    yield world.after(at_ms)
    for keeper in keepers:
        world.emit(EcEvicted(world.env.now, keeper.name, keeper.evict()))
