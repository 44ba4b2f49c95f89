"""SIM-LITTLE and SIM-FAIR: who is at which instance, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import ClassVar

from epdsim.events import (
    EncodeFinished,
    EncodeSpared,
    EngineStarted,
    Event,
    FleetStarted,
    InstanceBack,
    InstanceChosen,
    InstanceLost,
    LegRetried,
    LegSent,
    PromptComputed,
    RequestAborted,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepFinished,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Reached

MOST_TIES = 8
"""Times, one after the other, that one of several idle equals may be chosen."""


@dataclass(slots=True)
class _Station:
    """One engine since it was last empty.

    Attributes:
        level: Requests in it, as told at the end of its last step.
        told_ms: When that was.
        area_ms: The level summed over time.
        stays_ms: Stays of those that left, from the end of the step in which they came.
        came: Requests that came since the last step ended.
        since_ms: When the others were first counted.
    """

    level: int = 0
    told_ms: float = 0.0
    area_ms: float = 0.0
    stays_ms: float = 0.0
    came: set[str] = field(default_factory=set[str])
    since_ms: dict[str, float] = field(default_factory=dict[str, float])

    def steps(self, event: StepFinished) -> None:
        """A step ends."""
        now_ms = event.time_ms
        self.area_ms += self.level * (now_ms - self.told_ms)
        self.level, self.told_ms = event.num_running + event.num_waiting, now_ms
        for request_id in self.came:
            self.since_ms[request_id] = now_ms
        self.came.clear()

    def aborts(self, request_id: str, now_ms: float) -> None:
        """A request is taken out, of which the end of the last step told."""
        if request_id in self.since_ms:
            self.area_ms += self.level * (now_ms - self.told_ms)
            self.level, self.told_ms = self.level - 1, now_ms

    def leaves(self, request_id: str, now_ms: float) -> bool:
        """A request leaves; whether nobody is left."""
        self.came.discard(request_id)
        self.stays_ms += now_ms - self.since_ms.pop(request_id, now_ms)
        return not self.came and not self.since_ms


class SimLittle:
    """SIM-LITTLE."""

    reads: ClassVar[tuple[type[Event], ...]] = (
        EngineStarted,
        RequestQueued,
        StepFinished,
        PromptComputed,
        RequestFinished,
        RequestFailed,
        RequestAborted,
        InstanceLost,
    )

    def __init__(self) -> None:
        self._stations: dict[str, _Station] = {}
        self._where: dict[str, list[str]] = {}

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Sum what engines tell of their queues, and beside it the stays of requests."""
        if isinstance(event, StepFinished):
            station = self._stations.get(event.instance)
            if station is not None:
                station.steps(event)
        elif isinstance(event, RequestQueued):
            if event.instance in self._stations:
                self._stations[event.instance].came.add(event.request_id)
                self._where.setdefault(event.request_id, []).append(event.instance)
        elif isinstance(event, EngineStarted) or (isinstance(event, InstanceLost) and event.instance in self._stations):
            # What is lost with an engine has not stayed: its callers hear of it later.
            self._stations[event.instance] = _Station(told_ms=event.time_ms)
        elif isinstance(event, (RequestFinished, RequestFailed, PromptComputed, RequestAborted)):
            name = self._leaves(event)
            if name and self._stations[name].leaves(event.request_id, event.time_ms):
                yield from self._empty(name, self._stations[name])

    def _leaves(self, event: RequestFinished | RequestFailed | PromptComputed | RequestAborted) -> str:
        """The engine that a request leaves now; it may be in two at a time."""
        at = self._where.get(event.request_id, [])
        name = event.instance if event.instance in at else ""
        if name:
            at.remove(name)
        if isinstance(event, RequestAborted) and name:
            self._stations[name].aborts(event.request_id, event.time_ms)
        if not at or isinstance(event, (RequestFinished, RequestFailed)):
            self._where.pop(event.request_id, None)
        return name

    def _empty(self, name: str, station: _Station) -> Iterator[Finding]:
        yield Reached(f"{name} is empty")
        if not isclose(station.area_ms, station.stays_ms, rel_tol=1e-9, abs_tol=1e-6):
            yield Broken(
                f"{name} is empty at {station.told_ms} ms: the requests that it told of come to {station.area_ms} ms over time, "
                f"their stays to {station.stays_ms} ms"
            )
        station.area_ms = station.stays_ms = 0.0


@dataclass(slots=True)
class _Pool:
    """The instances that take one leg.

    Attributes:
        names: All of them.
        router: Which of them takes the next leg.
        served: Those that had their turn in this round.
        outstanding: Legs sent to them and not answered.
        lost: Those that are lost now; with any, nothing is said of the pool.
        last: Which one was chosen when all were idle.
        ties: How often it was, one time after the other.
    """

    names: Sequence[str]
    router: str
    served: set[str] = field(default_factory=set[str])
    outstanding: int = 0
    lost: set[str] = field(default_factory=set[str])
    last: str = ""
    ties: int = 0


class SimFair:
    """SIM-FAIR."""

    reads: ClassVar[tuple[type[Event], ...]] = (
        FleetStarted,
        InstanceChosen,
        LegSent,
        LegRetried,
        EncodeFinished,
        EncodeSpared,
        PromptComputed,
        RequestFinished,
        RequestFailed,
        InstanceLost,
        InstanceBack,
    )

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._at: dict[str, dict[str, _Pool]] = {}
        self._ahead: dict[str, set[tuple[str, str]]] = {}

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Follow who is chosen."""
        if isinstance(event, FleetStarted):
            self._pools = {
                leg: _Pool(names, event.routers.get(leg, event.router)) for leg, names in event.pools.items()
            }
        elif isinstance(event, (EncodeFinished, EncodeSpared)):
            if "encode" in self._pools:
                self._pools["encode"].outstanding -= len(event.mm_hashes)
        elif isinstance(event, PromptComputed):
            self._answered(event.request_id, "prefill")
        elif isinstance(event, LegRetried) and event.leg == "encode":
            # The engine that was chosen before encode stays chosen.
            ahead = self._ahead.get(event.request_id, set())
            ahead.difference_update([one for one in ahead if one[0] == "encode"])
        elif isinstance(event, (RequestFinished, RequestFailed, LegRetried)):
            self._ahead.pop(event.request_id, None)
            self._answered(event.request_id, *self._pools)
        elif isinstance(event, InstanceChosen) and (pool := self._pools.get(event.leg)) is not None:
            self._ahead.setdefault(event.request_id, set()).add((event.leg, event.to))
            yield from self._chosen(event, pool)
            # An item that is chosen for is sent at once; its leg is told apart.
            pool.outstanding += event.leg == "encode"
        elif isinstance(event, LegSent) and (pool := self._pools.get(event.leg)) is not None:
            yield from self._sent(event, pool)
        elif isinstance(event, (InstanceLost, InstanceBack)):
            for pool in self._pools.values():
                if event.instance in pool.names:
                    (pool.lost.add if isinstance(event, InstanceLost) else pool.lost.discard)(event.instance)
                    pool.served.clear()

    def _sent(self, event: LegSent, pool: _Pool) -> Iterator[Finding]:
        is_ahead = (event.leg, event.to) in self._ahead.get(event.request_id, ())
        if event.leg != "encode":
            # Decode comes after prefill, unless it comes first, when there is no prefill to be answered.
            self._answered(event.request_id, event.leg, *(["prefill"] if event.leg == "decode" else []))
            self._at.setdefault(event.request_id, {})[event.leg] = pool
        if not is_ahead:
            yield from self._chosen(event, pool)
        pool.outstanding += event.leg != "encode" or not is_ahead

    def _answered(self, request_id: str, *legs: str) -> None:
        at = self._at.get(request_id, {})
        for leg in legs:
            pool = at.pop(leg, None)
            if pool is not None:
                pool.outstanding -= 1
        if not at:
            self._at.pop(request_id, None)

    def _chosen(self, event: LegSent | InstanceChosen, pool: _Pool) -> Iterator[Finding]:
        if len(pool.names) < 2 or pool.lost:
            return
        if pool.router == "round_robin":
            if event.to in pool.served:
                told = f"{event.to} takes a second {event.leg} leg before {len(pool.names) - len(pool.served)} others had one"
                yield Broken(told, (event.request_id,))
            pool.served.add(event.to)
            if len(pool.served) == len(pool.names):
                yield Reached(f"a round of {event.leg} legs")
                pool.served.clear()
        elif pool.router == "least_loaded" and not pool.outstanding:
            yield Reached(f"a tie among idle instances for {event.leg}")
            pool.ties = pool.ties + 1 if event.to == pool.last else 1
            pool.last = event.to
            if pool.ties > MOST_TIES:
                yield Broken(
                    f"of {len(pool.names)} idle instances {event.to} takes the {event.leg} leg {pool.ties} times on end"
                )
