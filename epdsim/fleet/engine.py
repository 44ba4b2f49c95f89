"""One engine: a scheduler of the core, a clock, and the broadcast to its ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import simpy

from epdsim.core.plan import StepPlan
from epdsim.core.request import Request
from epdsim.core.scheduler.scheduler import Scheduler, StepOutcome
from epdsim.cost.lm import decode_stepper
from epdsim.events import EcLoaded, FirstToken, LegRecovered, PromptComputed, RequestFinished, StepFinished
from epdsim.fleet.config import EnginePool
from epdsim.fleet.faults import InstanceLostError, RequestLostError
from epdsim.fleet.lines import Line
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.render import RenderedRequest
from epdsim.fleet.step_cost import BroadcastCost, StepBroadcast, step_load
from epdsim.fleet.telling import decisions, engine_started, request_queued, stride_planned
from epdsim.fleet.world import TICKS_PER_MS, World, on_grid

_LONGEST_STRIDE = 64
"""Steps that are looked ahead at most: an arrival makes the rest of the look-ahead worthless."""


@dataclass(slots=True)
class _Stride:
    """Steps under way that decide nothing.

    Attributes:
        started_ms: When the first one began.
        ends: When each ends, in ticks of the grid since then.
        num_steps: How many of them are taken.
        broadcast: Of each.
        timer: Fires when the last one that is taken ends.
    """

    started_ms: float
    ends: Sequence[int]
    num_steps: int
    broadcast: StepBroadcast
    timer: simpy.Event = field(init=False)


@dataclass(frozen=True, slots=True)
class Setback:
    """What was lost of a request before it came here.

    Attributes:
        lost_ms: When, the last time.
        delivered_tokens: Output tokens that the client has; the last ones of the prompt here.
    """

    lost_ms: float
    delivered_tokens: int


@dataclass(slots=True)
class _Job:
    """A request in this engine: its rendering, the client's view of it, who waits for it, and what it has been through."""

    rendered: RenderedRequest
    is_visible: bool
    done: simpy.Event
    setback: Setback | None = None
    output_tokens: int = 0


class EngineInstance:
    """A prefill, decode or all-in-one engine; its life: idle until a request comes, then step after step until none is left.

    Attributes:
        name: For events.
        outstanding: Requests sent to it and not answered, in the orchestrator's books; what routers may see.
        is_up: Whether the orchestrator takes it for alive.
        num_losses: How often it was lost.

    Args:
        world: Clock, configuration, sinks.
        name: For events.
        pool: What all engines of its pool have in common.
        ec_line: What embeddings come on.
        lockstep: The clock that they share; None when each has its own.
    """

    def __init__(
        self, world: World, name: str, pool: EnginePool, ec_line: Line, lockstep: Lockstep | None = None
    ) -> None:
        self.name, self.outstanding, self.is_up, self.num_losses = name, 0, True, 0
        self._ec_line, self._is_lost = ec_line, False
        self._lost: list[tuple[simpy.Event, InstanceLostError]] = []
        self._world, self._pool, self._lockstep = world, pool, lockstep
        # Another engine of the round may have more to do in any step than this one sees; of an engine that will be lost, the steps
        # before that count.
        faults = world.config.faults
        will_be_lost = faults is not None and any(loss.instance == name for loss in faults.losses)
        self._takes_strides = world.takes_strides and lockstep is None and not will_be_lost
        self._broadcast = BroadcastCost(world.config.costs.broadcast, pool.tp)
        self._decode_steps_ms = decode_stepper(pool.lm)
        self._begin()

    def _begin(self) -> None:
        """With nothing in it."""
        world, pool = self._world, self._pool
        self._scheduler = Scheduler(pool.scheduler, world.config.dialect)
        self._requests: dict[str, Request] = {}
        self._jobs: dict[str, _Job] = {}
        self._without_token: set[str] = set()
        self._admitted: set[str] = set()
        self._num_steps = 0
        self._ended: list[str] = []
        self._stride: _Stride | None = None
        self._timer: simpy.Event | None = None
        self._is_idle = False
        if world.wants_detail:
            world.emit(
                engine_started(world.env.now, self.name, pool.scheduler, f"simulated {world.config.dialect.name}")
            )
        self._advance()

    def lose(self) -> None:
        """End, with all requests and caches; nobody is told yet."""
        now_ms = self._world.env.now
        self._is_lost = True
        self.num_losses += 1
        for timer in (self._timer, self._stride.timer if self._stride is not None else None):
            if timer is not None and timer.callbacks is not None:
                timer.callbacks.clear()
        for job in self._jobs.values():
            output_tokens = job.output_tokens if job.is_visible else 0
            self._lost.append((job.done, InstanceLostError(self.name, now_ms, output_tokens)))

    def give_up_lost(self) -> None:
        """Tell callers that what they wait for was lost."""
        lost, self._lost = self._lost, []
        for done, error in lost:
            done.fail(error)

    def come_back(self) -> None:
        """Begin anew."""
        self._is_lost = False
        self._begin()

    @property
    def block_size(self) -> int:
        """Tokens of its KV blocks."""
        return self._pool.scheduler.block_size

    def submit(
        self, request: Request, rendered: RenderedRequest, *, is_visible: bool, setback: Setback | None = None
    ) -> simpy.Event:
        """Add a request; the event fires when it has all its tokens, and fails with `RequestLostError` when it ends without.

        Args:
            request: As this engine sees it.
            rendered: As the client sent it.
            is_visible: Whether its tokens go to the client (a prefill instance with a decode pool behind it keeps them).
            setback: What was lost of it before.

        Raises:
            InputError: The engine can never run it.
        """
        if self._is_lost:
            return self._refuse()
        self._scheduler.add_request(request)
        done = self._world.env.event()
        self._requests[request.request_id] = request
        self._jobs[request.request_id] = _Job(rendered, is_visible, done, setback)
        self._without_token.add(request.request_id)
        if self._world.wants_detail:
            delivered = setback.delivered_tokens if setback is not None else 0
            self._world.emit(request_queued(self._world.env.now, self.name, request, delivered))
        if self._is_idle:
            self._is_idle = False
            if self._lockstep is not None:
                self._lockstep.wake(self._advance)
            else:
                self._timer = self._world.soon(self._wake)
        elif self._stride is not None:
            self._cut_stride(self._stride)
        return done

    def _refuse(self) -> simpy.Event:
        """A call to an engine that is lost: it fails when the loss is known."""
        done = self._world.env.event()
        self._lost.append((done, InstanceLostError(self.name, self._world.env.now)))
        if not self.is_up:
            self._world.soon(lambda _: self.give_up_lost())
        return done

    def _advance(self) -> None:
        """Begin what comes next: a stride, a planned step, or idleness."""
        scheduler = self._scheduler
        steady = scheduler.steady_steps(_LONGEST_STRIDE) if self._takes_strides else 0
        if steady > 1 and self._all_have_tokens():
            self._begin_stride(steady)
            return
        while not (plan := scheduler.schedule()).total_num_scheduled_tokens:
            outcome = scheduler.update_from_output(plan)
            if not (plan.preempted or outcome.failed):
                # Only a new arrival can change what can be scheduled: stepping on would spin.
                self._is_idle = True
                if plan.finished and self._world.wants_detail:
                    self._emit_decisions(plan)
                return
            self._emit_decisions(plan)
            self._take_tokens(outcome)
        self._begin_step(plan)

    def _wake(self, _: simpy.Event) -> None:
        self._advance()

    def _begin_step(self, plan: StepPlan) -> None:
        """One planned step."""
        world = self._world
        self._emit_decisions(plan)
        broadcast = self._broadcast.of(plan, self._requests)
        encode_ms = self._encode_ms(plan) if plan.scheduled_encoder_inputs else 0.0
        duration_ms = broadcast.total_ms + encode_ms
        if plan.ec_loads:
            duration_ms += self._ec_load_ms(plan)
        duration_ms += self._pool.lm.step_ms(step_load(plan, self._requests))
        ends = partial(self._end_step, plan, world.env.now, broadcast, encode_ms)
        if self._lockstep is not None:
            self._lockstep.join(on_grid(duration_ms), ends)
        else:
            self._timer = world.at_step_end(on_grid(duration_ms), ends)

    def _end_step(
        self, plan: StepPlan, started_ms: float, broadcast: StepBroadcast, encode_ms: float, _: simpy.Event
    ) -> None:
        outcome = self._scheduler.update_from_output(plan)
        num_tokens, num_requests = plan.total_num_scheduled_tokens, len(plan.num_scheduled_tokens)
        self._emit_step(plan.step, num_tokens, num_requests, started_ms, broadcast, encode_ms=encode_ms)
        self._take_tokens(outcome)
        self._advance()

    def _all_have_tokens(self) -> bool:
        """Whether every running request has its first token, so that a stride brings none."""
        return not self._without_token or self._without_token.isdisjoint(self._scheduler.running)

    def _begin_stride(self, num_steps: int) -> None:
        """Steps that decide nothing, in one wait."""
        scheduler = self._scheduler
        count = scheduler.num_running
        broadcast = self._broadcast.plain(count)
        steps_ms = self._decode_steps_ms(count, scheduler.num_running_tokens, num_steps)
        fixed_ms = broadcast.total_ms
        ends = list(accumulate([round((fixed_ms + step_ms) * TICKS_PER_MS) for step_ms in steps_ms]))
        self._stride = stride = _Stride(self._world.env.now, ends, num_steps, broadcast)
        stride.timer = self._world.at_step_end(ends[-1] / TICKS_PER_MS, self._end_stride)

    def _cut_stride(self, stride: _Stride) -> None:
        """A request has arrived: the stride ends with the step that is under way."""
        elapsed_ms = self._world.env.now - stride.started_ms
        num_steps = bisect_left(stride.ends, elapsed_ms * TICKS_PER_MS) + 1
        if num_steps < stride.num_steps:
            stride.num_steps = num_steps
            stride.timer.callbacks.clear()
            left_ms = stride.ends[num_steps - 1] / TICKS_PER_MS - elapsed_ms
            stride.timer = self._world.at_step_end(left_ms, self._end_stride)

    def _end_stride(self, _: simpy.Event) -> None:
        stride = self._stride
        assert stride is not None, "a stride that was cut has called off its end"
        self._stride = None
        num_steps = stride.num_steps
        before = self._progress() if self._world.wants_detail else None
        outcome = self._scheduler.take_steps(num_steps)
        count = len(outcome.new_tokens)
        if before is not None:
            self._emit_stride(num_steps, before)
        self._emit_step(
            self._num_steps, num_steps * count, count, stride.started_ms, stride.broadcast, num_steps=num_steps
        )
        jobs = self._jobs
        for request_id in outcome.new_tokens:
            jobs[request_id].output_tokens += num_steps
        for request_id in outcome.finished:
            self._finish_request(request_id)
        self._advance()

    def _progress(self) -> dict[str, tuple[int, int]]:
        """Computed tokens and number of blocks of each request that runs."""
        return {name: (computed, len(blocks)) for name, (computed, blocks) in self._scheduler.progress().items()}

    def _emit_stride(self, num_steps: int, before: Mapping[str, tuple[int, int]]) -> None:
        """The decisions of a stride that has ended, which are none: what its steps computed, and on which blocks."""
        now_ms, after, finished = self._world.env.now, self._scheduler.progress(), sorted(self._ended)
        self._ended.clear()
        self._world.emit(stride_planned(now_ms, self.name, self._num_steps, num_steps, before, after, finished))

    def _encode_ms(self, plan: StepPlan) -> float:
        """The encoder, where the engine runs it itself; one batch a step."""
        patches = [
            self._jobs[request_id].rendered.items[index].media.encoder_patches
            for request_id, indices in plan.scheduled_encoder_inputs.items()
            for index in indices
        ]
        return self._world.config.costs.encode.encode_ms(patches) if patches else 0.0

    def _ec_load_ms(self, plan: StepPlan) -> float:
        """Pulling embeddings, one after the other over the engine's link."""
        store, now_ms = self._world.ec_store, self._world.env.now
        sizes = [store.touch(mm_hash) for mm_hash in plan.ec_loads]
        for mm_hash, nbytes in zip(plan.ec_loads, sizes, strict=True):
            self._world.emit(EcLoaded(now_ms, self.name, mm_hash, nbytes))
        return self._ec_line.send(sizes)

    def _emit_step(
        self,
        step: int,
        num_tokens: int,
        num_requests: int,
        started_ms: float,
        broadcast: StepBroadcast,
        *,
        encode_ms: float = 0.0,
        num_steps: int = 1,
    ) -> None:
        scheduler, now_ms = self._scheduler, self._world.env.now
        self._num_steps = step + num_steps
        self._world.emit(
            StepFinished(
                now_ms,
                self.name,
                step,
                num_tokens,
                num_requests,
                scheduler.num_running,
                scheduler.num_waiting,
                now_ms - started_ms,
                num_steps * broadcast.grid_ms,
                on_grid(encode_ms) if encode_ms else 0.0,
                num_steps * broadcast.sent_bytes,
                num_steps * broadcast.unstripped_bytes,
                scheduler.free_blocks,
                num_steps,
            )
        )

    def _take_tokens(self, outcome: StepOutcome) -> None:
        for request_id, count in outcome.new_tokens.items():
            job = self._jobs[request_id]
            if count and not job.output_tokens:
                self._without_token.discard(request_id)
                if job.is_visible:
                    self._emit_first_token(request_id, job.setback)
            job.output_tokens += count
        for request_id in outcome.finished:
            self._finish_request(request_id)
        for request_id, reason in outcome.failed.items():
            del self._requests[request_id]
            self._without_token.discard(request_id)
            self._admitted.discard(request_id)
            self._jobs.pop(request_id).done.fail(RequestLostError(reason))

    def _emit_first_token(self, request_id: str, setback: Setback | None) -> None:
        """The client's first token, or the first one after a loss."""
        now_ms = self._world.env.now
        if setback is None or not setback.delivered_tokens:
            self._world.emit(FirstToken(now_ms, self.name, request_id))
        if setback is not None:
            self._world.emit(LegRecovered(now_ms, self.name, request_id, setback.lost_ms))

    def _finish_request(self, request_id: str) -> None:
        job = self._jobs.pop(request_id)
        del self._requests[request_id]
        self._admitted.discard(request_id)
        if self._world.wants_detail:
            self._ended.append(request_id)
        if job.is_visible:
            num_tokens = job.output_tokens + (job.setback.delivered_tokens if job.setback is not None else 0)
            self._world.emit(RequestFinished(self._world.env.now, self.name, request_id, num_tokens))
        elif self._world.wants_detail:
            self._world.emit(PromptComputed(self._world.env.now, self.name, request_id))
        job.done.succeed()

    def _emit_decisions(self, plan: StepPlan) -> None:
        world = self._world
        known = self._admitted
        self._ended.clear()
        for event in decisions(world.env.now, self.name, plan, self._requests, known, wants_detail=world.wants_detail):
            world.emit(event)
        known.update(new.request_id for new in plan.new)
