"""The steps of one engine: a scheduler of the core, a clock, and the broadcast to its ranks.

Its life: idle until something comes, then step after step until nothing is left to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import simpy

from epdsim.core.ec.connector import has_input
from epdsim.core.plan import StepPlan, TransferReport
from epdsim.core.request import Request
from epdsim.core.scheduler.scheduler import Scheduler, StepOutcome
from epdsim.cost.lm import decode_stepper
from epdsim.events import (
    FirstToken,
    LegRecovered,
    PromptComputed,
    RequestAborted,
    RequestFinished,
    StepFinished,
)
from epdsim.fleet.config import LONGEST_STRIDE, LOOKS_AGAIN_MS, EnginePool
from epdsim.fleet.ec.consumer import Consumer, Engine
from epdsim.fleet.faults import ClientLeftError, EmbeddingLostError, RequestLostError
from epdsim.fleet.grid import TICKS_PER_MS, WHOLE, on_grid
from epdsim.fleet.jobs import NEVER_MS, Job, Setback, Stride
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.step_cost import BroadcastCost, StepBroadcast, step_load
from epdsim.fleet.telling import decisions, engine_started, stride_planned
from epdsim.fleet.world import World

Consume = Callable[[Engine], Consumer]
"""Makes an engine's side of the hand-over of embeddings."""


class Stepper:
    """Plans and takes steps.

    The order in a step: what was decided is told, and who was preempted and cannot be computed again leaves with that
    (`_preempted`), before the output is taken that has nothing for it any more; what came from outside is handed in with the output
    (`_report`), of those to be taken out too, whose blocks are free with it; tokens are told; who is taken out goes last
    (`_take_aborts`), for it may have ended by itself.

    Args:
        world: Clock, configuration, sinks.
        name: For events.
        pool: What all engines of its pool have in common.
        consume: Makes its side of the hand-over of embeddings; None where it encodes itself or gets none.
        lockstep: The clock that they share; None when each has its own.
    """

    def __init__(
        self, world: World, name: str, pool: EnginePool, consume: Consume | None, lockstep: Lockstep | None
    ) -> None:
        self.name = name
        self._ec = consume(self) if consume is not None else None
        self._world, self._pool, self._lockstep = world, pool, lockstep
        self._place = world.next_place()
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
        connector = self._ec.begin() if self._ec is not None else None
        self._scheduler = Scheduler(pool.scheduler, world.config.dialect, connector)
        self._requests: dict[str, Request] = {}
        self._jobs: dict[str, Job] = {}
        self._without_token: set[str] = set()
        self._admitted: set[str] = set()
        self._num_steps = 0
        self._ended: list[str] = []
        self._received: list[str] = []
        self._aborting: list[tuple[Job, simpy.Event]] = []
        self._stride: Stride | None = None
        self._timer: simpy.Event | None = None
        self._is_idle = False
        if world.wants_detail:
            world.emit(
                engine_started(world.env.now, self.name, pool.scheduler, f"simulated {world.config.dialect.name}")
            )
        self._advance()

    def nudge(self) -> None:
        """Something has come from outside: plan now, or when the step under way ends."""
        if self._is_idle:
            self._is_idle = False
            self._call_off()
            if self._lockstep is not None:
                self._lockstep.wake(self._advance)
            else:
                self._timer = self._world.soon(self._wake)
        elif self._stride is not None:
            self._cut_stride(self._stride)

    def _advance(self) -> None:
        """Begin what comes next: a stride, a planned step, or idleness."""
        scheduler = self._scheduler
        steady = scheduler.steady_steps(LONGEST_STRIDE) if self._takes_strides else 0
        if steady > 1 and self._all_have_tokens():
            self._begin_stride(steady)
            return
        if self._ec is not None:
            self._ec.look()
        while not (plan := scheduler.schedule()).num_scheduled_tokens:
            self._tell_allocated(plan)
            report = self._report()
            if self._ec is not None:
                self._ec.planned(plan)
            outcome = scheduler.update_from_output(plan, None, report)
            if not (plan.preempted or outcome.failed or plan.ec_loads or report or self._aborting):
                self._rest(plan)
                return
            self._emit_decisions(plan)
            if self._ec is not None:
                self._ec.stepped(plan)
            self._take_failed(outcome)
            self._take_tokens(outcome)
            self._take_aborts()
        self._begin_step(plan)

    def _preempted(self, request_id: str) -> None:
        """What a decode engine took over it cannot compute again where the prompt has media, which it was not sent."""
        job, request = self._jobs[request_id], self._requests[request_id]
        job.began_ms = NEVER_MS
        if not request.num_remote_tokens or all(has_input(feature) for feature in request.mm_features):
            return
        self._scheduler.finish_requests([request_id])
        self._forget(request_id)
        reason = "it was preempted where its prompt cannot be computed again, for its media were not sent along"
        job.done.fail(EmbeddingLostError(self.name, self._world.env.now, job.output_tokens, reason))

    def _rest(self, plan: StepPlan) -> None:
        """What comes from outside can change what can be scheduled, or time, where embeddings are late: stepping would spin."""
        self._is_idle = True
        if (plan.finished or plan.free_encoder_mm_hashes) and self._world.wants_detail:
            self._emit_decisions(plan)
        if self._ec is not None and self._ec.is_waiting and self._scheduler.num_waiting:
            self._timer = self._world.after(LOOKS_AGAIN_MS)
            self._timer.callbacks.append(self._look_again)

    def _call_off(self) -> None:
        """Let the timer that is set, if one is, wake nobody."""
        if self._timer is not None and not self._timer.processed:
            self._timer.callbacks.clear()

    def _look_again(self, _: simpy.Event) -> None:
        self.nudge()

    def _tell_allocated(self, plan: StepPlan) -> None:
        """Tell those whose KV cache can come now."""
        for load in plan.kv_loads:
            allocated = self._jobs[load.request_id].allocated
            if load.is_async and allocated is not None:
                allocated.succeed()

    def _report(self) -> TransferReport | None:
        """What has come since the last step; of those that are taken out, that nothing comes any more."""
        received = dict.fromkeys(self._received)
        for job, _ in self._aborting:
            if job.allocated is not None and job.allocated.triggered and job.began_ms < 0:
                received[job.request_id] = None
        self._received.clear()
        return TransferReport(list(received)) if received else None

    def _take_aborts(self) -> None:
        """Take out who is not wanted any more."""
        aborting, self._aborting = self._aborting, []
        for job, gone in aborting:
            if self._jobs.get(job.request_id) is job:
                self._scheduler.finish_requests([job.request_id])
                self._forget(job.request_id)
                if job.is_left:
                    job.done.fail(ClientLeftError(job.output_tokens if job.is_visible else 0))
            gone.succeed()

    def _forget(self, request_id: str) -> None:
        """A request is gone without all its tokens."""
        del self._requests[request_id], self._jobs[request_id]
        self._without_token.discard(request_id)
        self._admitted.discard(request_id)
        if self._world.wants_detail:
            self._world.emit(RequestAborted(self._world.env.now, self.name, request_id))

    def _wake(self, _: simpy.Event) -> None:
        self._advance()

    def _begin_step(self, plan: StepPlan) -> None:
        """One planned step."""
        world = self._world
        if plan.kv_loads:
            self._tell_allocated(plan)
        self._emit_decisions(plan)
        broadcast = self._broadcast.of(plan, self._requests)
        encode_ms = self._encode_ms(plan) if plan.scheduled_encoder_inputs else 0.0
        duration_ms = broadcast.total_ms + encode_ms
        if self._ec is not None:
            duration_ms += self._ec.planned(plan)
        duration_ms += self._pool.lm.step_ms(step_load(plan, self._requests))
        ends = partial(self._end_step, plan, world.env.now, broadcast, encode_ms)
        if self._lockstep is not None:
            self._lockstep.join(on_grid(duration_ms), ends)
        else:
            self._timer = world.at_step_end(on_grid(duration_ms), ends, self._place)

    def _end_step(
        self, plan: StepPlan, started_ms: float, broadcast: StepBroadcast, encode_ms: float, _: simpy.Event
    ) -> None:
        report = self._report() if self._received or self._aborting else None
        if self._ec is not None:
            self._ec.look()
        outcome = self._scheduler.update_from_output(plan, None, report)
        if self._ec is not None:
            self._ec.stepped(plan)
        if outcome.failed:
            self._take_failed(outcome)
        num_tokens, num_requests = plan.total_num_scheduled_tokens, len(plan.num_scheduled_tokens)
        self._emit_step(plan.step, num_tokens, num_requests, started_ms, broadcast, encode_ms=encode_ms)
        self._take_tokens(outcome)
        if self._aborting:
            self._take_aborts()
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
        ends = list(accumulate([(fixed_ms + step_ms) * TICKS_PER_MS + WHOLE - WHOLE for step_ms in steps_ms]))
        self._stride = stride = Stride(self._world.env.now, ends, broadcast)
        stride.timer = self._world.at_step_end(ends[-1] / TICKS_PER_MS, self._end_stride, self._place)

    def _cut_stride(self, stride: Stride) -> None:
        """A request has arrived: the stride ends with the step that is under way."""
        left_ms = stride.cut(self._world.env.now)
        if left_ms is not None:
            stride.timer = self._world.at_step_end(left_ms, self._end_stride, self._place)

    def _end_stride(self, _: simpy.Event) -> None:
        stride = self._stride
        assert stride is not None, "a stride that was cut has called off its end"
        self._stride = None
        num_steps = stride.num_steps
        before = self._scheduler.progress() if self._world.wants_detail else None
        if self._ec is not None:
            self._ec.look()
        outcome = self._scheduler.take_steps(num_steps)
        count = len(outcome.new_tokens)
        if before is not None:
            self._emit_stride(num_steps, before, outcome.finished)
        self._emit_step(
            self._num_steps, num_steps * count, count, stride.started_ms, stride.broadcast, num_steps=num_steps
        )
        jobs = self._jobs
        for request_id in outcome.new_tokens:
            jobs[request_id].output_tokens += num_steps
        for request_id in outcome.finished:
            self._finish_request(request_id)
        if self._aborting:
            self._take_aborts()
        self._advance()

    def _emit_stride(
        self, num_steps: int, before: dict[str, tuple[int, int, Sequence[int]]], ended: Sequence[str]
    ) -> None:
        """The decisions of a stride that has ended, which are none: what its steps computed, and on which blocks."""
        finished = sorted(self._ended)
        self._ended.clear()
        now_ms, step = self._world.env.now, self._num_steps
        self._world.emit(stride_planned(now_ms, self.name, step, num_steps, before, finished, ended))

    def _encode_ms(self, plan: StepPlan) -> float:
        """The encoder, where the engine runs it itself; one batch a step."""
        patches = [
            self._jobs[request_id].rendered.items[index].media.encoder_patches
            for request_id, indices in plan.scheduled_encoder_inputs.items()
            for index in indices
        ]
        return self._world.config.costs.encode.encode_ms(patches) if patches else 0.0

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

    def _take_failed(self, outcome: StepOutcome) -> None:
        """Requests that the engine cannot go on with."""
        for request_id, reason in outcome.failed.items():
            job, request, error = self._jobs[request_id], self._requests[request_id], RequestLostError(reason)
            self._forget(request_id)
            if request.ec_offers:
                delivered = job.output_tokens if job.is_visible else 0
                error = EmbeddingLostError(self.name, self._world.env.now, delivered, reason)
            job.done.fail(error)

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
        for request_id in plan.preempted:
            self._preempted(request_id)
        for new in plan.new:
            known.add(new.request_id)
            self._jobs[new.request_id].began_ms = world.env.now
