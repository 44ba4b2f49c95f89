"""What all processes of one simulated fleet share: the clock, the configuration, the event sinks, the EC store."""

from __future__ import annotations

from collections.abc import Sequence

import simpy

from epdsim.core.ec_store import EcStore
from epdsim.events import Event, Sink
from epdsim.fleet.config import FleetConfig


class World:
    """One simulation's surroundings; nothing of it outlives the run or is shared with another.

    Attributes:
        env: SimPy's environment; times are milliseconds.
        config: The fleet.
        wants_detail: Whether events of detail are made at all.
        ec_store: Embeddings between encode and prefill.
        notices: What the user should read once, for example a fallback that was taken.
    """

    def __init__(self, config: FleetConfig, sinks: Sequence[Sink], *, wants_detail: bool) -> None:
        self.env = simpy.Environment()
        self.config = config
        self.wants_detail = wants_detail
        self.ec_store = EcStore(config.ec_capacity_bytes)
        self.notices: list[str] = []
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Hand an event to every sink."""
        for sink in self._sinks:
            sink(event)
