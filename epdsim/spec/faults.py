"""LIVE-WAIT and LIVE-HEAL: nobody waits for ever for what was lost, and what is over is got over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached

_TICK_MS = 1e-6
"""What times that are equal may differ by."""


class LiveWait:
    """LIVE-WAIT: a call that was lost with its engine is answered for within the time that a fleet has to notice.

    Of a call that was on its way then, and of one to an encoder, nobody tells when it is there: LIVE-HEAL judges how they end.
    """

    def __init__(self) -> None:
        self._detect_ms = 0.0
        self._sent: dict[str, dict[str, str]] = {}
        self._calls: dict[str, set[tuple[str, str]]] = {}
        self._lost: dict[tuple[str, str, str], float] = {}

    def by_kind(self) -> Monitor:
        """Follow each call from its sending to its answer; whoever comes, look first whose answer is overdue."""
        notes: dict[type[Event], Callable[[Any], None]] = {
            FleetStarted: self._fleet,
            LegSent: self._leg_sent,
            RequestQueued: self._queued,
            PromptComputed: self._prompt_computed,
            KvTransferred: self._transferred,
            InstanceLost: self._instance_lost,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }
        return {LegRetried: self._retried} | {kind: partial(self._take, note) for kind, note in notes.items()}

    def _take(self, note: Callable[[Any], None], event: Event, _engine: EngineState) -> list[Finding] | None:
        found = self._overdue(event.time_ms) if self._lost else None
        note(event)
        return found

    def _fleet(self, event: FleetStarted) -> None:
        self._detect_ms = event.detect_ms

    def _leg_sent(self, event: LegSent) -> None:
        self._sent.setdefault(event.request_id, {})[event.to] = event.leg

    def _queued(self, event: RequestQueued) -> None:
        sent = self._sent.get(event.request_id)
        if sent is not None and event.instance in sent:
            call = sent.pop(event.instance), event.instance
            self._calls.setdefault(event.request_id, set()).add(call)

    def _prompt_computed(self, event: PromptComputed) -> None:
        """Its call is answered; that its KV cache is lost shows when it is read."""
        self._answered(event.request_id, "prefill", event.instance)

    def _transferred(self, event: KvTransferred) -> None:
        self._answered(event.request_id, "prefill", event.source)

    def _instance_lost(self, event: InstanceLost) -> None:
        for request_id, calls in self._calls.items():
            for leg, to in calls:
                if to == event.instance:
                    self._lost[request_id, leg, to] = event.time_ms + self._detect_ms

    def _retried(self, event: LegRetried, _engine: EngineState) -> list[Finding]:
        """Everything from the prompt on is sent again."""
        found = self._overdue(event.time_ms)
        found.append(Reached(f"the {event.leg} leg of {event.request_id} was lost with {event.lost}"))
        for leg, to in [*self._calls.get(event.request_id, ())] if event.leg == "generate" else ():
            self._answered(event.request_id, leg, to)
        return found

    def _ends(self, event: RequestFinished | RequestFailed) -> None:
        self._sent.pop(event.request_id, None)
        for leg, to in self._calls.pop(event.request_id, ()):
            self._lost.pop((event.request_id, leg, to), None)

    def _answered(self, request_id: str, leg: str, to: str) -> None:
        self._calls.get(request_id, set[tuple[str, str]]()).discard((leg, to))
        self._lost.pop((request_id, leg, to), None)

    def _overdue(self, now_ms: float) -> list[Finding]:
        overdue = [call for call, until_ms in self._lost.items() if now_ms > until_ms + _TICK_MS]
        found: list[Finding] = []
        for request_id, leg, to in overdue:
            until_ms = self._lost.pop((request_id, leg, to))
            told = f"{to} was lost with the {leg} leg of {request_id}, and by {until_ms} ms it was neither sent again nor failed"
            found.append(Broken(told, (request_id,)))
        return found


@dataclass(slots=True)
class _Work:
    """What requests give to do."""

    tokens: float = 0
    media_bytes: float = 0

    def add(self, tokens: float, media_bytes: float) -> None:
        """Count more of it."""
        self.tokens += tokens
        self.media_bytes += media_bytes


class LiveHeal:
    """LIVE-HEAL: once nothing goes wrong any more, those in the system end as if they were served one after the other.

    That is the bound: for each that is in the system then or comes meanwhile the longest stay of a request that met no fault, for
    each of its tokens, of prompt and output, the longest stay for a token, and for each byte of its media the longest for a byte;
    and once the time that the fleet takes to notice a loss and to give up waiting for an instance. Where some have media and nobody
    with media has met no fault, there is no bound.
    """

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

    def by_kind(self) -> Monitor:
        """Count who has to be served since the last fault, and how long anybody stays otherwise."""
        return {
            FleetStarted: self._fleet,
            RequestArrived: self._arrives,
            Rendered: self._rendered,
            InstanceLost: self._fault,
            InstanceBack: self._fault,
            EcEvicted: self._fault,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _fleet(self, event: FleetStarted, _engine: EngineState) -> None:
        self._patience_ms, self._quiet_ms = event.detect_ms + event.give_up_ms, event.faults_end_ms

    def _arrives(self, event: RequestArrived, _engine: EngineState) -> None:
        self._arrived[event.request_id] = event.time_ms, self._num_faults
        self._num_served += 1
        self._add(event.request_id, event.output_tokens, 0)

    def _rendered(self, event: Rendered, _engine: EngineState) -> None:
        self._add(event.request_id, event.num_prompt_tokens, event.payload_bytes)

    def _fault(self, event: InstanceLost | InstanceBack | EcEvicted, _engine: EngineState) -> None:
        self._num_faults += 1
        self._quiet_ms = max(self._quiet_ms, event.time_ms)
        self._hurt = set(self._arrived)
        self._num_served, self._served = len(self._hurt), _Work()
        for work in self._work.values():
            self._served.add(work.tokens, work.media_bytes)

    def _add(self, request_id: str, tokens: float, media_bytes: float) -> None:
        self._work.setdefault(request_id, _Work()).add(tokens, media_bytes)
        self._served.add(tokens, media_bytes)

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

    def _ends(self, event: RequestFinished | RequestFailed, _engine: EngineState) -> list[Finding] | None:
        request_id, now_ms = event.request_id, event.time_ms
        if request_id not in self._arrived:
            return None
        arrived_ms, num_faults = self._arrived.pop(request_id)
        work = self._work.pop(request_id)
        is_well = isinstance(event, RequestFinished)
        if is_well and num_faults == self._num_faults and (not num_faults or arrived_ms > self._quiet_ms):
            self._learn(now_ms - arrived_ms, work)
        if request_id not in self._hurt:
            return None
        self._hurt.discard(request_id)
        return self._healed(event)

    def _healed(self, event: RequestFinished | RequestFailed) -> list[Finding]:
        """Of a request that was there when the last fault was over: whether it ends in time."""
        found: list[Finding] = []
        request_id, now_ms = event.request_id, event.time_ms
        stuck, bound_ms = isinstance(event, RequestFailed) and event.stuck, self._bound_ms()
        if stuck or bound_ms is not None:
            found.append(Reached(f"{request_id} was there when the last fault was over, and ends"))
        if stuck or (bound_ms is not None and now_ms > bound_ms + _TICK_MS):
            late = " without hope" if stuck else f", later than {bound_ms} ms"
            told = f"the last fault was over at {self._quiet_ms} ms, and {request_id} ends at {now_ms} ms{late}"
            found.append(Broken(told, (request_id,)))
        return found


LIVE_WAIT = Property(
    "LIVE-WAIT",
    "Every wait on a remote (EC, KV, receiver) ends within a bound, in success, failure of that request, or retry.",
    "A lost message holds a request, and what it holds, for ever.",
    "end to end",
    sometimes="a leg is lost with its instance",
    evidence=("vLLM PRs 47941, 55290", "sglang issue 23082"),
    twin="ISO",
    monitor=lambda: LiveWait().by_kind(),
)
LIVE_HEAL = Property(
    "LIVE-HEAL",
    "After faults stop every request ends within a bound.",
    "A short failure of one part becomes a lasting one of the whole.",
    "end to end",
    kind="eventually",
    sometimes="a request that was there when the last fault was over ends",
    monitor=lambda: LiveHeal().by_kind(),
)
