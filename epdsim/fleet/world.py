"""What all processes of one simulated fleet share: the clock, the configuration, the event sinks, the EC store.

Time stands on the grid of `epdsim.fleet.grid`. What happens at the instant at which a step ends is seen by the next step: ends of
steps come last within an instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Final

import simpy

from epdsim.core.ec.store import EcStore
from epdsim.events import Sink
from epdsim.fleet.clock import NORMAL, Callback, alarm
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.grid import on_grid
from epdsim.fleet.telling import to_all

_LAST: Final = NORMAL + 1


class World:
    """One simulation's surroundings; nothing of it outlives the run or is shared with another.

    Attributes:
        env: SimPy's environment; times are milliseconds.
        config: The fleet.
        wants_detail: Whether events of detail are made at all.
        takes_strides: Whether engines take many steps at once where these decide nothing.
        ec_store: Embeddings between encode and prefill.
        notices: What the user should read once, for example a fallback that was taken.
        emit: Hands an event to every sink.
    """

    def __init__(self, config: FleetConfig, sinks: Sequence[Sink], *, wants_detail: bool, takes_strides: bool) -> None:
        self.env = simpy.Environment(0.0)
        self.config = config
        self.wants_detail = wants_detail
        self.takes_strides = takes_strides
        self.ec_store = EcStore(config.ec_capacity_bytes)
        self.notices: list[str] = []
        self.emit = to_all(sinks)
        self._places = count()

    def now_ms(self) -> float:
        """The time."""
        return self.env.now

    def after(self, duration_ms: float) -> simpy.Event:
        """Fires after a duration."""
        return alarm(self.env, on_grid(duration_ms), [])

    def soon(self, callback: Callback) -> simpy.Event:
        """Call back at this instant, behind what is already due at it.

        Returns:
            The event to call off.
        """
        return alarm(self.env, 0.0, [callback])

    def next_place(self) -> int:
        """A place of one's own in the order in which steps that end at the same instant are taken."""
        return next(self._places)

    def at_step_end(self, duration_ms: float, callback: Callback, place: int) -> simpy.Event:
        """Call back after a duration that is on the grid, behind everything else that happens at that instant.

        Args:
            duration_ms: From now.
            callback: Takes the event.
            place: Of whose step it is among those that end then. Without it the order would be that of beginning, which is
                another one where many steps are taken at once.

        Returns:
            The event to call off: `event.callbacks.clear()`.
        """
        return alarm(self.env, duration_ms, [callback], _LAST + place)


class Desk:
    """A place where so many are served at a time, the others in order of arrival.

    SimPy's `Resource` does the same at the price of two events for each visit, also of those who need not wait.
    """

    def __init__(self, world: World, capacity: int) -> None:
        self._env, self._num_free = world.env, capacity
        self._waiting: deque[simpy.Event] = deque()

    def enter(self) -> simpy.Event | None:
        """Take a place: None when one is free, else what fires when it is one's turn."""
        if self._num_free:
            self._num_free -= 1
            return None
        turn = self._env.event()
        self._waiting.append(turn)
        return turn

    def leave(self) -> None:
        """Give the place to the next."""
        if self._waiting:
            self._waiting.popleft().succeed()
        else:
            self._num_free += 1
