"""The front end of an encode instance that is sent raw media: what it takes to make tensors of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapreplace
from typing import TYPE_CHECKING

import simpy

from epdsim.fleet.grid import on_grid
from epdsim.fleet.world import World

if TYPE_CHECKING:
    from epdsim.fleet.encode import EncodeJob


class FrontEnd:
    """Processes that render legs, each one leg at a time, in order of arrival.

    When a leg is through is known when it comes, so that one event is enough for it.

    Args:
        world: Clock and costs.
        count: Processes.
        then: Takes a leg whose items are tensors now.
    """

    def __init__(self, world: World, count: int, then: Callable[[EncodeJob], None]) -> None:
        self._world, self._count, self._then = world, count, then
        self._cost = world.config.costs.encode_render or world.config.costs.render
        self._free_ms = [0.0] * count
        self._under_way: dict[simpy.Event, EncodeJob] = {}

    def render(self, job: EncodeJob) -> None:
        """Take a leg."""
        now_ms = self._world.env.now
        pixels, files = [item.pixels for item in job.items], [item.file_pixels for item in job.items]
        duration_ms = on_grid(self._cost.render_ms(pixels, file_pixels_per_item=files))
        end_ms = max(now_ms, self._free_ms[0]) + duration_ms
        heapreplace(self._free_ms, end_ms)
        through = self._world.after(end_ms - now_ms)
        self._under_way[through] = job
        through.callbacks.append(self._end)

    def lose(self) -> Iterable[EncodeJob]:
        """End: the legs that are lost."""
        for event in self._under_way:
            event.callbacks.clear()
        lost = list(self._under_way.values())
        self._under_way.clear()
        self._free_ms = [0.0] * self._count
        return lost

    def _end(self, through: simpy.Event) -> None:
        self._then(self._under_way.pop(through))
