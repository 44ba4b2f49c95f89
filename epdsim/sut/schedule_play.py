"""A recorded workload played to an engine, whichever it is: arrivals, aborts and resets, in the order of a recording.

In step n arrive the requests with `arrival_step` up to n, in order, then inputs of sessions; then come aborts, resets and pauses;
then the schedule call; then late aborts; then the engine hears what a step yielded: this one, or with async scheduling the one
before. With speculative decoding, but not with async scheduling, it then hears how many tokens were drafted for each request of the
step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from epdsim.core.ec.connector import NOTHING_TO_DO, EcStep
from epdsim.core.plan import TransferReport
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_records import RecordedRequest, RecordedUpdate, RecordedWorkload
from epdsim.sut.schedule_transfers import TransferWorkers


class Plan(Protocol):
    """What every engine's plan names alike."""

    @property
    def scheduled_encoder_inputs(self) -> Mapping[str, Sequence[int]]:
        """Item indices to encode, by request."""
        ...


P = TypeVar("P", bound=Plan)
E = TypeVar("E")
Tokens = Mapping[str, Sequence[Any]]
"""Sampled tokens by request; none for a request that does not reach the end of its known tokens."""
NumDrafts = Mapping[str, int]
"""Draft tokens by request."""
NO_DRAFTS: NumDrafts = MappingProxyType({})


class Engine(Protocol[P]):
    """What a play asks of an engine; `P` is its own form of a plan."""

    def add(self, request: RecordedRequest) -> None:
        """A request arrives."""
        ...

    def add_update(self, update: RecordedUpdate) -> None:
        """A session gets its next input, or the word that there is none; the session may have ended before."""
        ...

    def abort(self, request_id: str) -> None:
        """A client leaves; the request may have ended before."""
        ...

    def reset(self, which: str) -> None:
        """Reset a cache: `"prefix"`, `"encoder"`, `"running"` or `"connector"`, as in a recording."""
        ...

    def pause(self, what: str) -> None:
        """Hold back `"new"` requests, `"all"` or `"nothing"`."""
        ...

    def schedule(self) -> P:
        """Plan the next step."""
        ...

    def samples(self, plan: P) -> Collection[str]:
        """Requests that reach the end of their known tokens with a plan just made."""
        ...

    def told(self, plan: P) -> dict[str, Any]:
        """A plan just made, in the form of a recording, without `sampled`."""
        ...

    def update(self, plan: P, tokens: Tokens, kv_report: TransferReport | None) -> None:
        """Hand in what a step yielded, and what workers say about KV transfers with it."""
        ...

    def transfers(self, plan: P) -> dict[str, Any]:
        """`kv_loads` and `kv_sends` of a plan just made, in the form of a recording."""
        ...

    def propose(self, drafts: NumDrafts) -> None:
        """Hand in what was drafted after a step."""
        ...

    def queues(self) -> dict[str, Any]:
        """`free_blocks`, `running` and `waiting` as they stand."""
        ...


@runtime_checkable
class WorkedEngine(Protocol):
    """An engine with a worker behind it, which takes every plan in."""

    def yielded(self, tokens: Tokens) -> None:
        """What the step just planned yields."""
        ...

    def worked(self) -> Any:
        """What the worker did in it (`sut.schedule_workers.Worked`); None once it is lost."""
        ...


@runtime_checkable
class GuardedEngine(Protocol):
    """An engine with a front end before it."""

    def refusal(self, request: RecordedRequest) -> str:
        """Why the front end refuses a request; empty when it does not."""
        ...


class EngineDiedError(Exception):
    """The scheduler that is played has died of an assertion of its own; it cannot go on."""


class Play(Generic[P]):
    """A workload on an engine, step by step.

    Args:
        workload: What happens; its steps are not looked at.
        make_engine: Builds the engine for the workload, before what is beyond its EC connector.

    Attributes:
        engine: The engine.
        pending: Requests that have not arrived.
    """

    def __init__(
        self, workload: RecordedWorkload, make_engine: Callable[[RecordedWorkload, FarSide], Engine[P]]
    ) -> None:
        self._far = FarSide(workload)
        self._has_store = workload.ec_store is not None
        self._has_door = workload.config.has_door
        self._saves = workload.config.ec_role in {"producer", "both"}
        self._copying: deque[EcStep] = deque([NOTHING_TO_DO] * self._far.ec.report_steps)
        self._depth = 1 if workload.config.async_scheduling else 0
        self._aborts, self._late_aborts, self._resets, self._pauses = map(
            _by_step, (workload.aborts, workload.late_aborts, workload.resets, workload.pauses)
        )
        self._updates = _by_step([(update.arrival_step, update) for update in workload.updates])
        self.pending = list(workload.requests)
        self._features = {request.request_id: request.mm_features for request in self.pending}
        self._has_drafter = workload.config.speculative_method != "none"
        self._workers = TransferWorkers(workload) if workload.config.kv_role is not None else None
        self._num_quiet = 0
        self._under_way: deque[tuple[int, P, Tokens, EcStep]] = deque()
        self.engine = make_engine(workload, self._far)

    def arrives_later(self, request: RecordedRequest) -> None:
        """A request that the workload did not name."""
        self.pending.append(request)
        self._features[request.request_id] = request.mm_features
        if self._workers is not None:
            self._workers.expect(request)

    @property
    def has_workers(self) -> bool:
        """Whether the engine tells what workers do."""
        return isinstance(self.engine, WorkedEngine)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to come and no step with tokens and no KV transfer is under way."""
        if self.pending or any(tokens for _, _, tokens, _ in self._under_way):
            return False
        # Who ended with the last step may still have to be sent, which the next plan says.
        return self._workers is None or (self._workers.is_idle and self._num_quiet > self._depth)

    def step(
        self, number: int, sample: Callable[[str, int], Sequence[Any]], propose: Callable[[str], int] = lambda _: 0
    ) -> dict[str, Any]:
        """Play step `number`; what the engine decides, in the form of a recording.

        Args:
            number: Counted from 0.
            sample: The tokens that a request yields, given the number of its drafts that the step verifies; asked in scheduling
                order for those that yield some.
            propose: Tokens drafted for a request after the step, asked likewise for all that were scheduled.
        """
        engine = self.engine
        plan = self._schedule(number)
        told = engine.told(plan)
        samples = engine.samples(plan)
        scheduled, verified = told["num_scheduled_tokens"], told.pop("num_scheduled_spec_tokens")
        tokens = {name: list(sample(name, verified.get(name, 0))) if name in samples else [] for name in scheduled}
        drafts = {name: propose(name) for name in scheduled} if self._has_drafter and not self._depth else NO_DRAFTS
        if isinstance(engine, WorkedEngine):
            engine.yielded(tokens)
            told["worker"] = engine.worked()
        copies = {"ec_loads": told.pop("ec_loads"), "ec_saves": told.pop("ec_saves")}
        transfers = self._finish(number, plan, tokens, copies, drafts)
        if not self._far.pulls:
            del copies["ec_saves"]
        extra = {**copies, **self._far.said} if self._has_store else {}
        told |= {"sampled": tokens}
        if self._has_drafter:
            told |= {"num_scheduled_spec_tokens": verified, "num_draft_tokens": dict(drafts)}
        return told | extra | transfers | engine.queues()

    def advance(self, number: int, tokens: Tokens, drafts: NumDrafts = NO_DRAFTS) -> None:
        """Play step `number` with known tokens and drafts, and tell nothing: for timing."""
        self._finish(number, self._schedule(number), tokens, {}, drafts)

    def refused(self, number: int) -> Sequence[tuple[RecordedRequest, str]]:
        """Requests that arrive with step `number` and are turned away, with the reason; asked before the step is played."""
        engine = self.engine
        if not (self._has_door and isinstance(engine, GuardedEngine)):
            return ()
        asked = [(one, engine.refusal(one)) for one in self.pending if one.arrival_step <= number]
        refused = [(one, reason) for one, reason in asked if reason]
        self.pending = [one for one in self.pending if all(one is not other for other, _ in refused)]
        return refused

    def _schedule(self, number: int) -> P:
        engine = self.engine
        self._far.begin(number)
        if self.pending:
            for request in [one for one in self.pending if one.arrival_step <= number]:
                engine.add(request)
            self.pending = [one for one in self.pending if one.arrival_step > number]
        for update in self._updates.get(number, ()):
            self._features[update.request_id] = [*self._features[update.request_id], *update.mm_features]
            engine.add_update(update)
        for name in self._aborts.get(number, ()):
            engine.abort(name)
        for which in self._resets.get(number, ()):
            engine.reset(which)
        for what in self._pauses.get(number, ()):
            engine.pause(what)
        return engine.schedule()

    def _finish(
        self, number: int, plan: P, tokens: Tokens, copies: Mapping[str, Sequence[str]], drafts: NumDrafts
    ) -> dict[str, Any]:
        """Late aborts, and the output of whichever step is done; the KV transfers that begin with this one."""
        workers = self._workers
        transfers = self.engine.transfers(plan) if workers is not None else {}
        if workers is not None:
            workers.begin(number, transfers["kv_loads"], transfers["kv_sends"])
        copied = self._copied(plan, copies)
        for name in self._late_aborts.get(number, ()):
            self.engine.abort(name)
        self._num_quiet = 0 if tokens else self._num_quiet + 1
        self._under_way.append((number, plan, tokens, copied))
        while len(self._under_way) > self._depth:
            at, done, yielded, copied = self._under_way.popleft()
            self._copying.append(copied)
            self._far.done = self._copying.popleft()
            self.engine.update(done, yielded, workers.report(at) if workers is not None else None)
            if not self._far.pulls:
                self._far.stored |= set(copied.saves)
        if drafts:
            self.engine.propose(drafts)
        return transfers

    def _copied(self, plan: P, copies: Mapping[str, Sequence[str]]) -> EcStep:
        """What workers load in the step, and save of what they encode in it: with a shared store a producer saves everything."""
        inputs = plan.scheduled_encoder_inputs.items() if self._saves else ()
        encoded = {self._features[name][index].identifier for name, indices in inputs for index in indices}
        saves = [name for name in copies["ec_saves"] if name in encoded] if self._far.pulls else sorted(encoded)
        return EcStep(copies.get("ec_loads", ()), saves)


def _by_step(events: Sequence[tuple[int, E]]) -> Mapping[int, Sequence[E]]:
    found: dict[int, list[E]] = {}
    for number, what in events:
        found.setdefault(number, []).append(what)
    return found
