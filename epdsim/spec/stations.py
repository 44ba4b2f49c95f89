"""SIM-LITTLE and SIM-FAIR: who is at which instance, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose

from epdsim.events import (
    EncodeFinished,
    EncodeSpared,
    EngineStarted,
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
from epdsim.spec.property import Broken, Finding, Monitor, Reached

MOST_TIES = 40
"""Times on end that one of several idle equals may be chosen again; a router that draws lots among two does so once in 10^12."""


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

    def __init__(self) -> None:
        self._stations: dict[str, _Station] = {}
        self._where: dict[str, list[str]] = {}

    def by_kind(self) -> Monitor:
        """Sum what engines tell of their queues, and beside it the stays of requests."""
        return {
            EngineStarted: self._begins,
            RequestQueued: self._queued,
            StepFinished: self._step,
            PromptComputed: self._leaves,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
            RequestAborted: self._aborted,
            InstanceLost: self._lost,
        }

    def _begins(self, event: EngineStarted, _engine: EngineState) -> None:
        self._stations[event.instance] = _Station(told_ms=event.time_ms)

    def _lost(self, event: InstanceLost, _engine: EngineState) -> None:
        """What is lost with an engine has not stayed: its callers hear of it later."""
        if event.instance in self._stations:
            self._stations[event.instance] = _Station(told_ms=event.time_ms)

    def _step(self, event: StepFinished, _engine: EngineState) -> None:
        station = self._stations.get(event.instance)
        if station is not None:
            station.steps(event)

    def _queued(self, event: RequestQueued, _engine: EngineState) -> None:
        station = self._stations.get(event.instance)
        if station is not None:
            station.came.add(event.request_id)
            self._where.setdefault(event.request_id, []).append(event.instance)

    def _ends(self, event: RequestFinished | RequestFailed, engine: EngineState) -> tuple[Finding, ...] | None:
        found = self._leaves(event, engine)
        self._where.pop(event.request_id, None)
        return found

    def _aborted(self, event: RequestAborted, engine: EngineState) -> tuple[Finding, ...] | None:
        if event.instance in self._where.get(event.request_id, ()):
            self._stations[event.instance].aborts(event.request_id, event.time_ms)
        return self._leaves(event, engine)

    def _leaves(
        self, event: PromptComputed | RequestFinished | RequestFailed | RequestAborted, _engine: EngineState
    ) -> tuple[Finding, ...] | None:
        """A request leaves an engine; it may be in two at a time."""
        request_id, name = event.request_id, event.instance
        at = self._where.get(request_id)
        if at is None or name not in at:
            return None
        at.remove(name)
        if not at:
            del self._where[request_id]
        station = self._stations[name]
        return _empty(name, station) if station.leaves(request_id, event.time_ms) else None


def _empty(name: str, station: _Station) -> tuple[Finding, ...]:
    """SIM-LITTLE of an engine in which nobody is left."""
    area_ms, stays_ms = station.area_ms, station.stays_ms
    station.area_ms = station.stays_ms = 0.0
    reached = Reached(f"{name} is empty")
    if isclose(area_ms, stays_ms, rel_tol=1e-9, abs_tol=1e-6):
        return (reached,)
    told = (
        f"{name} is empty at {station.told_ms} ms: the requests that it told of come to {area_ms} ms over time, "
        f"their stays to {stays_ms} ms"
    )
    return reached, Broken(told)


@dataclass(slots=True)
class _Pool:
    """The instances that take one leg.

    Attributes:
        names: All of them.
        router: Which of them takes the next leg.
        served: Those that had their turn in this round.
        outstanding: Legs sent to them and not answered.
        lost: Those that are lost now; with any, nothing is said of the pool.
        last: Which one was chosen last.
        ties: By instance, how often on end, when it was chosen last and all were idle, it was chosen again. So those that come in
            pairs, the second of which goes to the other one, say nothing of a router.
    """

    names: Sequence[str]
    router: str
    served: set[str] = field(default_factory=set[str])
    outstanding: int = 0
    lost: set[str] = field(default_factory=set[str])
    last: str = ""
    ties: dict[str, int] = field(default_factory=dict[str, int])


_NOWHERE: dict[str, _Pool] = {}


class SimFair:
    """SIM-FAIR."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._at: dict[str, dict[str, _Pool]] = {}
        self._ahead: dict[str, set[tuple[str, str]]] = {}

    def by_kind(self) -> Monitor:
        """Follow who is chosen."""
        return {
            FleetStarted: self._fleet,
            InstanceChosen: self._instance_chosen,
            LegSent: self._sent,
            LegRetried: self._retried,
            EncodeFinished: self._encoded,
            EncodeSpared: self._encoded,
            PromptComputed: self._prompt_computed,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
            InstanceLost: self._lost,
            InstanceBack: self._back,
        }

    def _fleet(self, event: FleetStarted, _engine: EngineState) -> None:
        self._pools = {leg: _Pool(names, event.routers.get(leg, event.router)) for leg, names in event.pools.items()}

    def _encoded(self, event: EncodeFinished | EncodeSpared, _engine: EngineState) -> None:
        if "encode" in self._pools:
            self._pools["encode"].outstanding -= len(event.mm_hashes)

    def _prompt_computed(self, event: PromptComputed, _engine: EngineState) -> None:
        self._answered(event.request_id, "prefill")

    def _retried(self, event: LegRetried, engine: EngineState) -> None:
        if event.leg != "encode":
            self._ends(event, engine)
        elif (ahead := self._ahead.get(event.request_id)) is not None:
            # The engine that was chosen before encode stays chosen.
            ahead.difference_update([one for one in ahead if one[0] == "encode"])

    def _ends(self, event: RequestFinished | RequestFailed | LegRetried, _engine: EngineState) -> None:
        self._ahead.pop(event.request_id, None)
        for pool in self._at.pop(event.request_id, _NOWHERE).values():
            pool.outstanding -= 1

    def _instance_chosen(self, event: InstanceChosen, _engine: EngineState) -> list[Finding] | None:
        pool = self._pools.get(event.leg)
        if pool is None:
            return None
        self._ahead.setdefault(event.request_id, set()).add((event.leg, event.to))
        found = _chosen(event, pool)
        # An item that is chosen for is sent at once; its leg is told apart.
        pool.outstanding += event.leg == "encode"
        return found

    def _sent(self, event: LegSent, _engine: EngineState) -> list[Finding] | None:
        leg, request_id = event.leg, event.request_id
        pool = self._pools.get(leg)
        if pool is None:
            return None
        is_ahead = bool(self._ahead) and (leg, event.to) in self._ahead.get(request_id, ())
        if leg != "encode":
            # Decode comes after prefill, unless it comes first, when there is no prefill to be answered.
            self._answered(request_id, leg)
            if leg == "decode":
                self._answered(request_id, "prefill")
            self._at.setdefault(request_id, {})[leg] = pool
        found = None if is_ahead else _chosen(event, pool)
        pool.outstanding += leg != "encode" or not is_ahead
        return found

    def _answered(self, request_id: str, leg: str) -> None:
        at = self._at.get(request_id)
        if at is None or leg not in at:
            return
        at.pop(leg).outstanding -= 1
        if not at:
            del self._at[request_id]

    def _lost(self, event: InstanceLost, _engine: EngineState) -> None:
        for pool in self._pools.values():
            if event.instance in pool.names:
                pool.lost.add(event.instance)
                pool.served.clear()

    def _back(self, event: InstanceBack, _engine: EngineState) -> None:
        for pool in self._pools.values():
            if event.instance in pool.names:
                pool.lost.discard(event.instance)
                pool.served.clear()


def _chosen(event: LegSent | InstanceChosen, pool: _Pool) -> list[Finding] | None:
    """SIM-FAIR of one choice."""
    if len(pool.names) < 2 or pool.lost:
        return None
    found: list[Finding] = []
    if pool.router == "round_robin":
        if event.to in pool.served:
            told = (
                f"{event.to} takes a second {event.leg} leg before {len(pool.names) - len(pool.served)} others had one"
            )
            found.append(Broken(told, (event.request_id,)))
        pool.served.add(event.to)
        if len(pool.served) == len(pool.names):
            found.append(Reached(f"a round of {event.leg} legs"))
            pool.served.clear()
    elif pool.router == "least_loaded":
        last, pool.last = pool.last, event.to
        if pool.outstanding:
            return None
        found.append(Reached(f"a tie among idle instances for {event.leg}"))
        pool.ties[last] = times = pool.ties.get(last, 0) + 1 if event.to == last else 0
        if times > MOST_TIES:
            told = f"of {len(pool.names)} idle instances {last} takes the {event.leg} leg again {times} times on end"
            found.append(Broken(told))
    return found
