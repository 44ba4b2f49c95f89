"""LIVE-WAIT and LIVE-HEAL: nobody waits for ever for what was lost, and what is over is got over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from epdsim.events import (
    EcEvicted,
    Event,
    FleetStarted,
    InstanceBack,
    InstanceLost,
    KvTransferred,
    LegRetried,
    LegSent,
    PromptComputed,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestQueued,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached

_TICK_MS = 1e-6
"""What times that are equal may differ by."""


class LiveWait:
    """LIVE-WAIT: a call that was lost with its engine is answered for within the time that a fleet has to notice.

    Of a call that was on its way then, and of one to an encoder, nobody tells when it is there: LIVE-HEAL judges how they end.
    """

    reads: ClassVar[tuple[type[Event], ...]] = (
        FleetStarted,
        LegSent,
        RequestQueued,
        PromptComputed,
        KvTransferred,
        InstanceLost,
        LegRetried,
        RequestFinished,
        RequestFailed,
    )

    def __init__(self) -> None:
        self._detect_ms = 0.0
        self._sent: dict[str, dict[str, str]] = {}
        self._calls: dict[str, set[tuple[str, str]]] = {}
        self._lost: dict[tuple[str, str, str], float] = {}

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Follow each call from its sending to its answer."""
        if self._lost:
            yield from self._overdue(event.time_ms)
        match event:
            case FleetStarted():
                self._detect_ms = event.detect_ms
            case LegSent():
                self._sent.setdefault(event.request_id, {})[event.to] = event.leg
            case RequestQueued():
                leg = self._sent.get(event.request_id, {}).pop(event.instance, None)
                if leg is not None:
                    self._calls.setdefault(event.request_id, set()).add((leg, event.instance))
            case PromptComputed():
                # Its call is answered; that its KV cache is lost shows when it is read.
                self._answered(event.request_id, "prefill", event.instance)
            case KvTransferred():
                self._answered(event.request_id, "prefill", event.source)
            case InstanceLost():
                self._lose(event)
            case LegRetried():
                yield Reached(f"the {event.leg} leg of {event.request_id} was lost with {event.lost}")
                self._retry(event)
            case RequestFinished() | RequestFailed():
                self._sent.pop(event.request_id, None)
                for leg, to in self._calls.pop(event.request_id, ()):
                    self._lost.pop((event.request_id, leg, to), None)
            case _:
                pass

    def _lose(self, event: InstanceLost) -> None:
        for request_id, calls in self._calls.items():
            for leg, to in calls:
                if to == event.instance:
                    self._lost[request_id, leg, to] = event.time_ms + self._detect_ms

    def _retry(self, event: LegRetried) -> None:
        """Everything from the prompt on is sent again."""
        for leg, to in [*self._calls.get(event.request_id, ())] if event.leg == "generate" else ():
            self._answered(event.request_id, leg, to)

    def _answered(self, request_id: str, leg: str, to: str) -> None:
        self._calls.get(request_id, set[tuple[str, str]]()).discard((leg, to))
        self._lost.pop((request_id, leg, to), None)

    def _overdue(self, now_ms: float) -> Iterator[Finding]:
        overdue = [call for call, until_ms in self._lost.items() if now_ms > until_ms + _TICK_MS]
        for request_id, leg, to in overdue:
            until_ms = self._lost.pop((request_id, leg, to))
            yield Broken(
                f"{to} was lost with the {leg} leg of {request_id}, and by {until_ms} ms it was neither sent again nor failed",
                (request_id,),
            )


@dataclass(slots=True)
class _Work:
    """What requests give to do."""

    tokens: float = 0
    media_bytes: float = 0

    def add(self, other: _Work) -> None:
        """Count another one's too."""
        self.tokens += other.tokens
        self.media_bytes += other.media_bytes


class LiveHeal:
    """LIVE-HEAL: once nothing goes wrong any more, those in the system end as if they were served one after the other.

    That is the bound: for each that is in the system then or comes meanwhile the longest stay of a request that met no fault, for
    each of its tokens, of prompt and output, the longest stay for a token, and for each byte of its media the longest for a byte;
    and once the time that the fleet takes to notice a loss and to give up waiting for an instance. Where some have media and nobody
    with media has met no fault, there is no bound.
    """

    reads: ClassVar[tuple[type[Event], ...]] = (
        FleetStarted,
        RequestArrived,
        Rendered,
        InstanceLost,
        InstanceBack,
        EcEvicted,
        RequestFinished,
        RequestFailed,
    )

    def __init__(self) -> None:
        self._patience_ms = 0.0
        self._quiet_ms = 0.0
        self._num_faults = 0
        self._longest_ms = 0.0
        self._longest_each_ms = _Work(0.0, 0.0)
        self._arrived: dict[str, tuple[float, int]] = {}
        self._work: dict[str, _Work] = {}
        self._hurt = set[str]()
        self._num_served, self._served = 0, _Work()

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Count who has to be served since the last fault, and how long anybody stays otherwise."""
        match event:
            case FleetStarted():
                self._patience_ms, self._quiet_ms = event.detect_ms + event.give_up_ms, event.faults_end_ms
            case RequestArrived():
                self._arrived[event.request_id] = event.time_ms, self._num_faults
                self._num_served += 1
                self._add(event.request_id, _Work(event.output_tokens))
            case Rendered():
                self._add(event.request_id, _Work(event.num_prompt_tokens, event.payload_bytes))
            case InstanceLost() | InstanceBack() | EcEvicted():
                self._num_faults += 1
                self._quiet_ms = max(self._quiet_ms, event.time_ms)
                self._hurt = set(self._arrived)
                self._num_served, self._served = len(self._hurt), _Work()
                for work in self._work.values():
                    self._served.add(work)
            case RequestFinished() | RequestFailed() if event.request_id in self._arrived:
                yield from self._ends(event)
            case _:
                pass

    def _add(self, request_id: str, work: _Work) -> None:
        self._work.setdefault(request_id, _Work()).add(work)
        self._served.add(work)

    def _learn(self, stay_ms: float, work: _Work) -> None:
        """How long a request that met no fault stayed."""
        each = self._longest_each_ms
        self._longest_ms = max(self._longest_ms, stay_ms)
        each.tokens = max(each.tokens, stay_ms / max(1, work.tokens))
        if work.media_bytes:
            each.media_bytes = max(each.media_bytes, stay_ms / work.media_bytes)

    def _bound_ms(self) -> float | None:
        """When the last of them must have ended; None where nobody knows."""
        each = self._longest_each_ms
        if not self._longest_ms or (self._served.media_bytes and not each.media_bytes):
            return None
        stay_ms = self._num_served * self._longest_ms
        stay_ms += self._served.tokens * each.tokens + self._served.media_bytes * each.media_bytes
        return self._quiet_ms + self._patience_ms + stay_ms

    def _ends(self, event: RequestFinished | RequestFailed) -> Iterator[Finding]:
        request_id, now_ms = event.request_id, event.time_ms
        arrived_ms, num_faults = self._arrived.pop(request_id)
        work = self._work.pop(request_id, _Work())
        is_well = isinstance(event, RequestFinished)
        if is_well and num_faults == self._num_faults and (not num_faults or arrived_ms > self._quiet_ms):
            self._learn(now_ms - arrived_ms, work)
        if request_id not in self._hurt:
            return
        self._hurt.discard(request_id)
        stuck, bound_ms = isinstance(event, RequestFailed) and event.stuck, self._bound_ms()
        if stuck or bound_ms is not None:
            yield Reached(f"{request_id} was there when the last fault was over, and ends")
        if stuck or (bound_ms is not None and now_ms > bound_ms + _TICK_MS):
            yield Broken(
                f"the last fault was over at {self._quiet_ms} ms, and {request_id} ends at {now_ms} ms"
                f"{' without hope' if stuck else f', later than {bound_ms} ms'}",
                (request_id,),
            )


LIVE_WAIT = Property(
    "LIVE-WAIT",
    "Every wait on a remote (EC, KV, receiver) ends within a bound, in success, failure of that request, or retry.",
    "A lost message holds a request, and what it holds, for ever.",
    "end to end",
    sometimes="a leg is lost with its instance",
    evidence=("vLLM PRs 47941, 55290", "sglang issue 23082"),
    twin="ISO",
    monitor=LiveWait,
    reads=LiveWait.reads,
)
LIVE_HEAL = Property(
    "LIVE-HEAL",
    "After faults stop every request ends within a bound.",
    "A short failure of one part becomes a lasting one of the whole.",
    "end to end",
    kind="eventually",
    sometimes="a request that was there when the last fault was over ends",
    monitor=LiveHeal,
    reads=LiveHeal.reads,
)
