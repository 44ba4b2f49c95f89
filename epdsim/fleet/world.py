"""What all processes of one simulated fleet share: the clock, the configuration, the event sinks, the EC store.

Time stands on a grid of 2^-20 milliseconds (about a nanosecond), so that sums of durations are exact and many steps taken at once
end at the same instant as one by one (property FWD-EQ). What happens at the instant at which a step ends is seen by the next step:
ends of steps come last within an instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import simpy
from simpy.events import EventPriority

from epdsim.core.ec_store import EcStore
from epdsim.events import Event, Sink
from epdsim.fleet.config import FleetConfig

TICKS_PER_MS = 1 << 20
_LAST = cast("EventPriority", 2)
"""SimPy's priorities are 0 (urgent) and 1 (normal); a larger number comes later within an instant."""


def on_grid(duration_ms: float) -> float:
    """The nearest duration on the grid of time."""
    return round(duration_ms * TICKS_PER_MS) / TICKS_PER_MS


class World:
    """One simulation's surroundings; nothing of it outlives the run or is shared with another.

    Attributes:
        env: SimPy's environment; times are milliseconds.
        config: The fleet.
        wants_detail: Whether events of detail are made at all.
        takes_strides: Whether engines take many steps at once where these decide nothing; never with detail, which is per step.
        ec_store: Embeddings between encode and prefill.
        notices: What the user should read once, for example a fallback that was taken.
    """

    def __init__(self, config: FleetConfig, sinks: Sequence[Sink], *, wants_detail: bool, takes_strides: bool) -> None:
        self.env = simpy.Environment()
        self.config = config
        self.wants_detail = wants_detail
        self.takes_strides = takes_strides and not wants_detail
        self.ec_store = EcStore(config.ec_capacity_bytes)
        self.notices: list[str] = []
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Hand an event to every sink."""
        for sink in self._sinks:
            sink(event)

    def after(self, duration_ms: float) -> simpy.Event:
        """Fires after a duration."""
        return self.env.timeout(on_grid(duration_ms))

    def step_end(self, duration_ms: float) -> simpy.Event:
        """Fires after a duration, behind everything else that happens at that instant."""
        event = self.env.event()
        event._ok, event._value = True, None  # noqa: SLF001 - SimPy's Timeout does the same; it takes no priority
        self.env.schedule(event, priority=_LAST, delay=on_grid(duration_ms))
        return event
