"""Links as transfers find them: alone, one after the other, or side by side.

A line that is shared moves one transfer at a time, in order of sending, each at full bandwidth: the end of a transfer is known when
it is sent and never changes. The bytes that have passed at any moment are those of fair sharing, and whatever is sent together is
through at the same moment as there; only the first of them are through earlier. A fair line gives each transfer under way an equal
part of the bandwidth, so that an end moves whenever another transfer comes or goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import simpy

from epdsim.core.errors import InputError
from epdsim.cost.link import Link
from epdsim.events import LinkUsed
from epdsim.fleet.config import Sharing
from epdsim.fleet.faults import LinkName, Pace
from epdsim.fleet.grid import on_grid, up_to_grid
from epdsim.fleet.world import World


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

    def transfer(self, sizes: Sequence[int], beside_ms: float = 0.0) -> simpy.Event:
        """Send some transfers, one after the other.

        Args:
            sizes: In bytes.
            beside_ms: What their way takes beside the line.

        Returns:
            Fires when the last byte is there.
        """
        return self._world.after(beside_ms + self.send(sizes))

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


class _UnderWay(NamedTuple):
    """A transfer on a fair line; the first to end comes first.

    Attributes:
        ends_at: How much each transfer has had by then, in milliseconds of the whole line.
        order: Of sending.
        nbytes: Of it.
        begins_ms: When it was sent.
        latency_ms: From when its last byte went until it is there.
        beside_ms: What its way takes beside the line.
        done: Fires then.
    """

    ends_at: float
    order: int
    nbytes: int
    begins_ms: float
    latency_ms: float
    beside_ms: float
    done: simpy.Event


class FairLine(Line):
    """A link that is shared in equal parts by all transfers under way (processor sharing).

    The line keeps what a transfer that was there from the start would have had so far, which grows at the line's speed over the
    number of transfers: each ends when that has grown by its own size. Nothing is sampled, and an end that moves carries no error
    on: ends are computed in continuous time, and told at the first tick of the clock that is not before them. Latency delays a
    transfer and takes none of the bandwidth.
    """

    def __init__(self, world: World, name: str, link: Link, *, pace: Pace | None) -> None:
        super().__init__(world, name, link, is_shared=True, pace=pace)
        self._speed = pace or Pace(())
        self._latency_ms = on_grid(link.latency_ms)
        self._had_ms, self._until_ms = 0.0, 0.0
        self._under_way: list[_UnderWay] = []
        self._num_sent = 0
        self._timer: simpy.Event | None = None

    def send(self, sizes: Sequence[int]) -> float:
        """Nobody can tell when it would end."""
        del sizes
        raise InputError(
            f"the {self._name}", "is shared fairly: when a transfer over it ends is not known when it is sent"
        )

    def push(self, nbytes: int, since_ms: float, num_parts: int) -> float:
        """The same."""
        del since_ms, num_parts
        return self.send([nbytes])

    def transfer(self, sizes: Sequence[int], beside_ms: float = 0.0) -> simpy.Event:
        """Send some bytes beside what is under way."""
        world, done = self._world, self._world.env.event()
        self._let_pass(world.env.now)
        nbytes, now_ms = sum(sizes), world.env.now
        ends_at = self._had_ms + max(self._link.transfer_ms(nbytes) - self._link.latency_ms, 0.0)
        latency_ms = self._latency_ms * len(sizes)
        heappush(self._under_way, _UnderWay(ends_at, self._num_sent, nbytes, now_ms, latency_ms, beside_ms, done))
        self._num_sent += 1
        self._wake()
        return done

    def _let_pass(self, until_ms: float) -> None:
        """Let go of all that are through by then, and note what the others have had."""
        while self._under_way and (end_ms := self._next_end_ms()) <= until_ms:
            one = heappop(self._under_way)
            self._had_ms, self._until_ms = max(self._had_ms, one.ends_at), max(self._until_ms, end_ms)
            self._tell(one)
        if self._under_way:
            self._had_ms += self._speed.work_ms(self._until_ms, until_ms) / len(self._under_way)
        else:
            self._had_ms = 0.0  # nobody remembers it, and small numbers are exact
        self._until_ms = until_ms

    def _next_end_ms(self) -> float:
        left_ms = max(self._under_way[0].ends_at - self._had_ms, 0.0)
        return self._speed.end_ms(self._until_ms, left_ms * len(self._under_way))

    def _wake(self) -> None:
        """Set the clock for the next end."""
        if self._timer is not None and not self._timer.processed:
            self._timer.callbacks.clear()
        self._timer = None
        if not self._under_way:
            return
        env = self._world.env
        self._timer = env.timeout(max(up_to_grid(self._next_end_ms()) - env.now, 0.0))
        self._timer.callbacks.append(self._end)

    def _end(self, _: simpy.Event) -> None:
        """The next transfer is through."""
        self._let_pass(self._world.env.now)
        self._wake()

    def _tell(self, one: _UnderWay) -> None:
        world = self._world
        if world.wants_detail:
            now_ms, rate = world.env.now, self._link.bandwidth_bytes_per_s
            ends_ms = now_ms + one.latency_ms
            world.emit(
                LinkUsed(now_ms, self._name, one.nbytes, one.begins_ms, ends_ms, rate, is_alone=False, is_fair=True)
            )

        def arrive(_: object) -> None:
            one.done.succeed()

        world.after(one.latency_ms + one.beside_ms).callbacks.append(arrive)


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
        end = instance if self._sharing.endswith("instance") else ""
        line = self._lines.get(end)
        if line is None:
            name = f"{self._kind}-link" + (f" to {end}" if end else "")
            if self._sharing.startswith("fair"):
                line = FairLine(self._world, name, self._link, pace=self._pace)
            else:
                line = Line(self._world, name, self._link, is_shared=self._sharing != "none", pace=self._pace)
            self._lines[end] = line
        return line
