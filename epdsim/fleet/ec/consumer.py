"""An engine's side of the hand-over of embeddings: who carries its connector's messages, and how long that takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import simpy

from epdsim.core.ec.connector import EcConnector, TimedConnector
from epdsim.core.plan import StepPlan
from epdsim.fleet.lines import Line
from epdsim.fleet.world import World


class Engine(Protocol):
    """What a consumer asks of its engine."""

    name: str

    def nudge(self) -> None:
        """Something has come: plan now, or when the step under way ends."""
        ...


class Consumer(ABC):
    """One engine's.

    Args:
        world: Clock, configuration, sinks.
        engine: Whose it is.
        line: What embeddings come on.
    """

    def __init__(self, world: World, engine: Engine, line: Line) -> None:
        self._world, self._engine, self._line = world, engine, line
        self._life = 0

    def begin(self) -> EcConnector | None:
        """The connector of an engine that begins; None for that of a store, which the scheduler brings itself.

        What is on its way to the engine that was before it goes nowhere.
        """
        self._life += 1
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether time alone can change something, so that an engine with requests that wait must look again."""
        return False

    def look(self) -> None:  # noqa: B027 - a store needs no clock
        """Before a step is planned, and before its output is taken: what time it is."""

    @abstractmethod
    def planned(self, plan: StepPlan) -> float:
        """Carry what a plan asks for; how many milliseconds its loads add to the step."""

    def stepped(self, plan: StepPlan) -> None:  # noqa: B027 - a store hears nothing of it
        """A step is done, and with it its loads."""

    def _later(self, event: simpy.Event, then: Callable[[], None]) -> None:
        """Do something when an event fires, unless the engine is another one by then."""
        life = self._life

        def act(_: object) -> None:
            if life == self._life:
                then()

        event.callbacks.append(act)


C = TypeVar("C", bound=TimedConnector)


class TimedConsumer(Consumer, Generic[C]):
    """A consumer whose connector has to be told the time."""

    def __init__(self, world: World, engine: Engine, line: Line) -> None:
        super().__init__(world, engine, line)
        self._connector = self._new()

    @abstractmethod
    def _new(self) -> C:
        """A connector that holds nothing."""

    def begin(self) -> EcConnector:
        """Begin with nothing held and nothing awaited."""
        super().begin()
        self._connector = self._new()
        return self._connector

    @property
    def is_waiting(self) -> bool:
        """Whether the connector waits for something."""
        return self._connector.is_busy

    def look(self) -> None:
        """Tell the connector the time."""
        self._connector.now_ms = self._world.env.now
