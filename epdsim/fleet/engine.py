"""One engine: a scheduler of the core, a clock, and the broadcast to its ranks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from epdsim.core.plan import NewRequestData, StepPlan
from epdsim.core.request import Request
from epdsim.core.scheduler import Scheduler
from epdsim.core.strip import payload_kind
from epdsim.events import Admitted, EcLoaded, FirstToken, Preempted, RequestFinished, StepFinished, StepPlanned
from epdsim.fleet.config import EnginePool
from epdsim.fleet.render import RenderedRequest
from epdsim.fleet.step_cost import BroadcastCost, StepBroadcast, step_load
from epdsim.fleet.world import World


@dataclass(slots=True)
class _Job:
    """A request in this engine: its rendering, the client's view of it, and who waits for it."""

    rendered: RenderedRequest
    is_visible: bool
    done: simpy.Event
    output_tokens: int = 0
    was_admitted: bool = False


class EngineInstance:
    """A prefill, decode or all-in-one engine; its life: idle until a request comes, then step after step until none is left.

    Attributes:
        name: For events.
        outstanding: Requests sent to it and not answered, in the orchestrator's books; what routers may see.
    """

    def __init__(self, world: World, name: str, pool: EnginePool) -> None:
        self.name, self.outstanding = name, 0
        self._world, self._pool = world, pool
        self._scheduler = Scheduler(pool.scheduler, world.config.dialect)
        self._broadcast = BroadcastCost(world.config.costs.broadcast, pool.tp)
        self._requests: dict[str, Request] = {}
        self._jobs: dict[str, _Job] = {}
        self._wake = world.env.event()
        world.env.process(self._run())

    @property
    def block_size(self) -> int:
        """Tokens of its KV blocks."""
        return self._pool.scheduler.block_size

    def submit(self, request: Request, rendered: RenderedRequest, *, is_visible: bool) -> simpy.Event:
        """Add a request; the event fires when it has all its tokens.

        Args:
            request: As this engine sees it.
            rendered: As the client sent it.
            is_visible: Whether its tokens go to the client (a prefill instance with a decode pool behind it keeps them).

        Raises:
            InputError: The engine can never run it.
        """
        self._scheduler.add_request(request)
        done = self._world.env.event()
        self._requests[request.request_id] = request
        self._jobs[request.request_id] = _Job(rendered, is_visible, done)
        if not self._wake.triggered:
            self._wake.succeed()
        return done

    def _run(self) -> Generator[simpy.Event, Any, None]:
        env, scheduler = self._world.env, self._scheduler
        while True:
            plan = scheduler.schedule()
            if plan.total_num_scheduled_tokens == 0:
                # Only a new arrival can change what can be scheduled: stepping on would spin.
                scheduler.update_from_output(plan)
                self._wake = env.event()
                yield self._wake
                continue
            started_ms = env.now
            self._emit_decisions(plan)
            broadcast = self._broadcast.of(plan, self._requests)
            encode_ms = self._encode_ms(plan)
            duration_ms = broadcast.total_ms + encode_ms + self._ec_load_ms(plan)
            duration_ms += self._pool.lm.step_ms(step_load(plan, self._requests))
            yield self._world.step_end(duration_ms)
            self._finish_step(plan, started_ms, broadcast, encode_ms)

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
        store, link, now_ms = self._world.ec_store, self._world.config.costs.ec_link, self._world.env.now
        total_ms = 0.0
        for mm_hash in plan.ec_loads:
            nbytes = store.touch(mm_hash)
            total_ms += link.transfer_ms(nbytes)
            self._world.emit(EcLoaded(now_ms, self.name, mm_hash, nbytes))
        return total_ms

    def _finish_step(self, plan: StepPlan, started_ms: float, broadcast: StepBroadcast, encode_ms: float) -> None:
        scheduler, now_ms = self._scheduler, self._world.env.now
        outcome = scheduler.update_from_output(plan)
        self._world.emit(
            StepFinished(
                now_ms,
                self.name,
                plan.step,
                plan.total_num_scheduled_tokens,
                len(plan.num_scheduled_tokens),
                scheduler.num_running,
                scheduler.num_waiting,
                now_ms - started_ms,
                broadcast.total_ms,
                encode_ms,
                broadcast.sent_bytes,
                broadcast.unstripped_bytes,
                scheduler.free_blocks,
            )
        )
        for request_id, count in outcome.new_tokens.items():
            job = self._jobs[request_id]
            if count and not job.output_tokens and job.is_visible:
                self._world.emit(FirstToken(now_ms, self.name, request_id))
            job.output_tokens += count
        for request_id in outcome.finished:
            self._finish_request(request_id)

    def _finish_request(self, request_id: str) -> None:
        job = self._jobs.pop(request_id)
        del self._requests[request_id]
        if job.is_visible:
            self._world.emit(RequestFinished(self._world.env.now, self.name, request_id, job.output_tokens))
        job.done.succeed()

    def _emit_decisions(self, plan: StepPlan) -> None:
        now_ms, emit = self._world.env.now, self._world.emit
        for request_id in plan.preempted:
            emit(Preempted(now_ms, self.name, request_id))
        for new in plan.new:
            self._emit_admission(new)
        if self._world.wants_detail:
            emit(
                StepPlanned(
                    now_ms,
                    self.name,
                    plan.step,
                    plan.num_scheduled_tokens,
                    plan.scheduled_encoder_inputs,
                    plan.ec_loads,
                    plan.free_encoder_mm_hashes,
                )
            )

    def _emit_admission(self, new: NewRequestData) -> None:
        job, request = self._jobs[new.request_id], self._requests[new.request_id]
        self._world.emit(
            Admitted(
                self._world.env.now,
                self.name,
                new.request_id,
                request.prompt.num_tokens,
                new.num_computed_tokens,
                request.num_remote_tokens,
                [payload_kind(feature.data) for feature in new.mm_features],
                job.was_admitted,
            )
        )
        job.was_admitted = True
