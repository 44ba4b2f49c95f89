"""What all orchestrators do: a request is rendered, its items are encoded, it is generated, and what is lost is sent again."""

from __future__ import annotations

from abc import ABC, abstractmethod

from epdsim.core.errors import EpdsimError, InputError
from epdsim.events import LegRetried, Rendered, RequestArrived, RequestFailed
from epdsim.fleet.clock import Steps
from epdsim.fleet.faults import ClientLeftError, EmbeddingLostError, InstanceLostError, RequestLostError
from epdsim.fleet.orchestrators.calls import Calls
from epdsim.fleet.orchestrators.encoding import LOST, Encoding
from epdsim.fleet.orchestrators.task import Task
from epdsim.fleet.render import ProcessorCache, RenderedRequest, Renderer
from epdsim.fleet.telling import NAME
from epdsim.fleet.world import Desk, World
from epdsim.workload.request import WorkloadRequest


class Orchestrator(ABC):
    """Carries requests through render, encode, prefill and decode, whichever of these the topology has.

    Args:
        world: Clock, configuration, sinks.
        renderer: Turns workload requests into prompts.
        calls: To engines.
        encoding: To encoders; None when prefill encodes.
    """

    def __init__(self, world: World, renderer: Renderer, calls: Calls, encoding: Encoding | None) -> None:
        self._world, self._renderer, self._calls, self._encoding = world, renderer, calls, encoding
        self._max_retries = world.config.max_retries
        self._front_end = Desk(world, world.config.render.count)
        self._processor_cache = ProcessorCache(world.config.render.cache_bytes)
        self._in_flight: dict[str, Task] = {}

    @abstractmethod
    def _generate(self, task: Task) -> Steps:
        """From the prompt to the last token, once its embeddings are there."""

    def handle(self, source: WorkloadRequest) -> Steps:
        """The whole way of one request; ends with its last token or a failure event, never with an error of the input."""
        world, task = self._world, Task(source)
        world.emit(RequestArrived(world.env.now, NAME, source.request_id, source.output_tokens, source.slo_class))
        self._in_flight[source.request_id] = task
        if source.leaves_ms or source.patience_ms:
            self._expect_leave(task)
        try:
            rendered = task.rendered = self._renderer.render(source)
            turn = self._front_end.enter()
            if turn is not None:
                yield turn
            num_hits, render_ms = self._render_ms(rendered)
            yield world.after(render_ms)
            self._front_end.leave()
            self._tell_rendered(rendered, num_hits, render_ms)
            yield from self._serve(task)
        except EpdsimError as error:
            self._tell_end(task, error)
        finally:
            if self._encoding is not None:
                self._encoding.release(task)
        del self._in_flight[source.request_id]

    def _tell_end(self, task: Task, error: EpdsimError) -> None:
        """A request has ended without its tokens."""
        # The value names the request, which the event does already: without it, equal reasons are equal.
        told = [error.rule, error.remedy] if isinstance(error, InputError) else [str(error)]
        left = error if isinstance(error, ClientLeftError) else None
        self._world.emit(
            RequestFailed(
                self._world.env.now,
                NAME,
                task.request_id,
                "; ".join(filter(None, told)),
                refused=not isinstance(error, RequestLostError),
                aborted=left is not None,
                output_tokens=0 if left is None else task.num_delivered + left.output_tokens,
            )
        )

    def _expect_leave(self, task: Task) -> None:
        """Let its client leave when it will, if it ever does."""
        source, after = task.source, self._world.after
        if source.leaves_ms:
            after(source.leaves_ms).callbacks.append(lambda _: self._leave(task))
        if source.patience_ms:
            after(source.patience_ms).callbacks.append(lambda _: self._leave(task, unless_answered=True))

    def _leave(self, task: Task, *, unless_answered: bool = False) -> None:
        if self._in_flight.get(task.request_id) is task and not (unless_answered and task.has_first_token):
            task.leave()

    def fail_stuck(self) -> None:
        """At the end of time: whatever is still under way waits for something that cannot happen (property SIM-PROG)."""
        for request_id, task in self._in_flight.items():
            reason = f"stuck in {task.stage}: nothing in the fleet can move it any more"
            self._world.emit(RequestFailed(self._world.env.now, NAME, request_id, reason, stuck=True))
        self._in_flight.clear()

    def _render_ms(self, rendered: RenderedRequest) -> tuple[int, float]:
        """Items that the processor cache holds, and how long a front-end process works on a request."""
        render, items, num_tokens = self._world.config.costs.render, rendered.items, rendered.prompt.num_tokens
        if not items:
            return 0, render.render_ms((), num_tokens)
        hits = [self._processor_cache.hit(item.mm_hash, item.media.item.nbytes) for item in items]
        fresh = [item.pixels for item, hit in zip(items, hits, strict=True) if not hit]
        known = [item.pixels for item, hit in zip(items, hits, strict=True) if hit]
        files = [item.file_pixels for item in items]
        return sum(hits), render.render_ms(fresh, num_tokens - rendered.num_media_tokens, known, files)

    def _tell_rendered(self, rendered: RenderedRequest, num_hits: int, render_ms: float) -> None:
        world, items = self._world, rendered.items
        world.emit(
            Rendered(
                world.env.now,
                "render",
                rendered.source.request_id,
                rendered.prompt.num_tokens,
                rendered.num_media_tokens,
                [item.mm_hash for item in items],
                num_hits,
                sum([item.media.item.nbytes for item in items]),
                render_ms,
            )
        )

    def _serve(self, task: Task) -> Steps:
        """Encode and generate; what was lost with an instance is done again, behind the tokens that the client has."""
        while True:
            try:
                task.check_client()
                if self._encoding is not None and task.handles is None:
                    task.stage = "encode"
                    yield from self._encode(task, self._encoding)
                    task.check_client()
                task.stage = "generate"
                yield from self._generate(task)
            except EmbeddingLostError as missed:  # a name of its own: compiled, a name in a generator has one type
                self._take_miss(task, missed)
            except InstanceLostError as lost:
                self._take_loss(task, lost)
            else:
                return

    def _encode(self, task: Task, encoding: Encoding) -> Steps:
        """Have the embeddings of a request's items."""
        return encoding.encode(task)

    def _forget(self, task: Task) -> None:  # noqa: B027 - the usual case
        """What of a request's embeddings is lost with an engine: nothing, where it can be read again."""

    def _take_loss(self, task: Task, lost: InstanceLostError) -> None:
        """What was lost with an instance is sent again, or the request fails."""
        task.num_losses += 1
        if task.num_losses > self._max_retries:
            raise RequestLostError(LOST.format("the request", task.num_losses, self._max_retries)) from lost
        self._forget(task)
        self._retry(task, lost, task.num_losses)

    def _take_miss(self, task: Task, lost: EmbeddingLostError) -> None:
        """What failed for want of embeddings is sent again, and these are encoded again; or the request fails."""
        task.num_misses += 1
        if task.num_misses >= self._world.config.ec.max_encodes:
            raise RequestLostError(lost.reason) from lost
        task.handles = task.consumer = None
        self._retry(task, lost, task.num_misses)

    def _retry(self, task: Task, lost: InstanceLostError, attempt: int) -> None:
        world = self._world
        task.lost(lost)
        task.check_client()
        told = task.request_id, "generate", lost.instance, attempt, task.num_delivered
        world.emit(LegRetried(world.env.now, NAME, *told))
