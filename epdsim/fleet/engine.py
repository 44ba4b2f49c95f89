"""One engine, as its callers see it."""

from __future__ import annotations

import simpy

from epdsim.core.request import Request
from epdsim.fleet.config import EnginePool
from epdsim.fleet.faults import InstanceLostError
from epdsim.fleet.jobs import Job, Setback
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.render import RenderedRequest
from epdsim.fleet.stepping import Consume, Stepper
from epdsim.fleet.telling import request_queued
from epdsim.fleet.world import World


class EngineInstance(Stepper):
    """A prefill, decode or all-in-one engine.

    Attributes:
        name: For events.
        outstanding: Requests sent to it and not answered, in the orchestrator's books; what routers may see.
        is_up: Whether the orchestrator takes it for alive.
        num_losses: How often it was lost.

    Args:
        world: Clock, configuration, sinks.
        name: For events.
        pool: What all engines of its pool have in common.
        consume: Makes its side of the hand-over of embeddings; None where it encodes itself or gets none.
        lockstep: The clock that they share; None when each has its own.
    """

    def __init__(
        self,
        world: World,
        name: str,
        pool: EnginePool,
        consume: Consume | None = None,
        lockstep: Lockstep | None = None,
    ) -> None:
        self.outstanding, self.is_up, self.num_losses = 0, True, 0
        self._is_lost = False
        self._lost: list[tuple[simpy.Event, InstanceLostError]] = []
        super().__init__(world, name, pool, consume, lockstep)

    def lose(self) -> None:
        """End, with all requests and caches; nobody is told yet."""
        now_ms = self._world.env.now
        self._is_lost = True
        self.num_losses += 1
        self._call_off()
        if self._stride is not None and not self._stride.timer.processed:
            self._stride.timer.callbacks.clear()
        # What comes to it from now on does not wake it: neither a KV cache nor an embedding.
        self._is_idle, self._stride = False, None
        for _, gone in self._aborting:
            gone.succeed()
        self._aborting.clear()
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
    ) -> Job:
        """Add a request.

        Args:
            request: As this engine sees it.
            rendered: As the client sent it.
            is_visible: Whether its tokens go to the client (a prefill instance with a decode pool behind it keeps them).
            setback: What was lost of it before.

        Raises:
            InputError: The engine can never run it.
        """
        job = Job(request.request_id, rendered, is_visible, self._world.env.event(), setback)
        if self._is_lost:
            self._refuse(job)
            return job
        self._scheduler.add_request(request)
        if request.kv_transfer.loads_async:
            job.allocated = self._world.env.event()
        self._requests[request.request_id] = request
        self._jobs[request.request_id] = job
        self._without_token.add(request.request_id)
        if self._world.wants_detail:
            delivered = setback.delivered_tokens if setback is not None else 0
            self._world.emit(request_queued(self._world.env.now, self.name, request, delivered))
        self.nudge()
        return job

    def receive(self, job: Job) -> None:
        """The KV cache that a request waits for has come."""
        if self._jobs.get(job.request_id) is job:
            self._received.append(job.request_id)
            self.nudge()

    def abort(self, job: Job) -> None:
        """Take a request out, with the end of the step that is under way."""
        job.done.defused = True
        if not self._is_lost and self._jobs.get(job.request_id) is job:
            self._aborting.append((job, self._world.env.event()))
            self.nudge()

    def leave(self, job: Job) -> None:
        """The same for a client that has left, and who waits for it is told: unless its last token comes with that step."""
        job.is_left = True
        self.abort(job)

    def gone(self, request_id: str) -> simpy.Event | None:
        """Fires when a request of that id that is being taken out is gone; None where there is none."""
        return next((gone for job, gone in self._aborting if job.request_id == request_id), None)

    def _refuse(self, job: Job) -> None:
        """A call to an engine that is lost: it fails when the loss is known."""
        self._lost.append((job.done, InstanceLostError(self.name, self._world.env.now)))
        if not self.is_up:
            self._world.soon(lambda _: self.give_up_lost())
