"""Links as transfers find them: alone, or one after the other.

A line that is shared moves one transfer at a time, in order of sending, each at full bandwidth. So the end of a transfer is known
when it is sent and never changes, which keeps time exact. The bytes that have passed at any moment are those of fair sharing, and
whatever is sent together is through at the same moment as there; only the first of them are through earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epdsim.cost.link import Link
from epdsim.events import LinkUsed
from epdsim.fleet.config import Sharing
from epdsim.fleet.faults import LinkName, Pace
from epdsim.fleet.world import World, on_grid


class Line:
    """One link.

    Args:
        world: Clock and sinks.
        name: For events.
        link: Latency, in which the line is taken too, and bandwidth.
        is_shared: Whether it moves one transfer at a time.
        pace: When it is slow or cut; None for never.
    """

    def __init__(self, world: World, name: str, link: Link, *, is_shared: bool, pace: Pace | None) -> None:
        self._world, self._name, self._link = world, name, link
        self._is_shared, self._pace = is_shared, pace
        self._is_plain = not is_shared and pace is None
        self._free_ms = 0.0

    def send(self, sizes: Sequence[int]) -> float:
        """Milliseconds until the last byte of some transfers, one after the other, is there."""
        link, world = self._link, self._world
        if self._is_plain:
            return sum(map(link.transfer_ms, sizes))
        now_ms = world.env.now
        end_ms = max(now_ms, self._free_ms) if self._is_shared else now_ms
        for nbytes in sizes:
            begin_ms, work_ms = end_ms, on_grid(link.transfer_ms(nbytes))
            end_ms = begin_ms + work_ms if self._pace is None else on_grid(self._pace.end_ms(begin_ms, work_ms))
            if world.wants_detail:
                rate = link.bandwidth_bytes_per_s
                world.emit(LinkUsed(now_ms, self._name, nbytes, begin_ms, end_ms, rate, self._is_shared))
        if self._is_shared:
            self._free_ms = end_ms
        return end_ms - now_ms

    def push(self, nbytes: int, since_ms: float, num_parts: int) -> float:
        """Milliseconds until the last byte of a transfer is there that others did not have to wait for so far.

        Its parts went while they were made, as soon as the line was free; the last one goes now.

        Args:
            nbytes: In all.
            since_ms: When the first part was made.
            num_parts: All of one size.
        """
        world, link, now_ms = self._world, self._link, self._world.env.now
        # Whatever was sent before is through when the line is free: from then on it was idle.
        begin_ms = max(since_ms, self._free_ms) if self._is_shared else since_ms
        pace = self._pace or Pace(())
        all_ms, last_ms = on_grid(link.transfer_ms(nbytes)), on_grid(link.transfer_ms(-(-nbytes // num_parts)))
        end_ms = on_grid(max(pace.end_ms(begin_ms, all_ms), pace.end_ms(now_ms, last_ms)))
        if self._is_shared:
            self._free_ms = end_ms
        if world.wants_detail and not self._is_plain:
            rate = link.bandwidth_bytes_per_s
            world.emit(LinkUsed(now_ms, self._name, nbytes, begin_ms, end_ms, rate, self._is_shared))
        return end_ms - now_ms


class Lines:
    """The lines of one kind of link.

    Args:
        world: Clock and sinks.
        kind: Of link.
        link: Latency and bandwidth of each.
        sharing: Which transfers share one.
        paces: When which kinds of links are slow or cut.
    """

    def __init__(
        self, world: World, kind: LinkName, link: Link, sharing: Sharing, paces: Mapping[LinkName, Pace]
    ) -> None:
        self._world, self._kind, self._link, self._sharing = world, kind, link, sharing
        self._pace = paces.get(kind)
        self._lines: dict[str, Line] = {}

    def to(self, instance: str) -> Line:
        """The line that leads to an instance."""
        end = instance if self._sharing == "instance" else ""
        line = self._lines.get(end)
        if line is None:
            name = f"{self._kind}-link" + (f" to {end}" if end else "")
            is_shared = self._sharing != "none"
            line = self._lines[end] = Line(self._world, name, self._link, is_shared=is_shared, pace=self._pace)
        return line
