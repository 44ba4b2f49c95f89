"""The calls that an orchestrator makes of engines: what they carry, where they go, and how their answers are waited for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from epdsim.core.errors import EpdsimError
from epdsim.core.request import WITHIN_STEP, KvTransfer, Request
from epdsim.core.slots import features_of
from epdsim.events import LegSent
from epdsim.fleet.composer import (
    body_bytes,
    decode_call,
    ec_params,
    prefill_legs,
    text_decode_bytes,
    text_prefill_bytes,
)
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.health import Health
from epdsim.fleet.jobs import Job
from epdsim.fleet.lines import Lines
from epdsim.fleet.orchestrators.task import NO_HANDLES, Task
from epdsim.fleet.routing import router
from epdsim.fleet.telling import NAME
from epdsim.fleet.world import World

Choice = Generator[simpy.Event, Any, EngineInstance]
Submission = Generator[simpy.Event, Any, Job]


class Outstanding:
    """A call to an engine, in the orchestrator's books from its sending to its answer."""

    __slots__ = ("_engine",)

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.outstanding += 1

    def __exit__(self, *_: object) -> None:
        self._engine.outstanding -= 1


class Wanted:
    """While a call is waited for, and perhaps something else: when that fails, nobody wants the call any more."""

    __slots__ = ("_before", "_engine", "_job", "_task")

    def __init__(self, task: Task, engine: EngineInstance, job: Job) -> None:
        self._task, self._engine, self._job, self._before = task, engine, job, task.call

    def __enter__(self) -> None:
        self._job.done.defused = True  # it may fail while something else is waited for
        self._task.call = self._engine, self._job

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, EpdsimError):
            self._engine.abort(self._job)
        self._task.call = self._before


class Calls:
    """Composes calls and sends them.

    Args:
        world: Clock, configuration, sinks.
        prefill: Engines that compute prompts.
        decode: Engines that generate; empty when prefill does.
        body: What bodies travel on.
        kv: What KV caches travel on.
        health: Knows which instances are lost; None when none ever is.

    Attributes:
        hands_over: Whether another engine generates than the one that computes the prompt.
        kv: As given.
    """

    def __init__(
        self,
        world: World,
        prefill: Sequence[EngineInstance],
        decode: Sequence[EngineInstance],
        body: Lines,
        kv: Lines,
        health: Health | None,
    ) -> None:
        config = world.config
        self._world, self._prefill, self._decode = world, prefill, decode
        self._body, self.kv, self._health = body, kv, health
        self._encodes_apart, self.hands_over = config.encode is not None, bool(decode)
        self._stage = "prefill" if self.hands_over or self._encodes_apart else "aggregated"
        self._to_prefill = router(config.router_of(config.prefill), world.now_ms, config.router_stale_ms)
        self._to_decode = router(config.router_of(config.decode), world.now_ms, config.router_stale_ms)

    @property
    def engines(self) -> Sequence[EngineInstance]:
        """All that it sends calls to."""
        return [*self._prefill, *self._decode]

    def choose_prefill(self, task: Task, *beside: simpy.Event) -> Choice:
        """The engine that is to compute a prompt; where none is alive, the wait for one fails with what else is waited for."""
        pool, health = self._prefill, self._health
        if health is not None:
            pool = yield from health.up(pool, self._stage, beside)
        return self._to_prefill(pool, task.rendered.prompt, task.mm_hashes)

    def choose_decode(self, task: Task) -> Choice:
        """The engine that is to generate."""
        pool = self._decode if self._health is None else (yield from self._health.up(self._decode, "decode"))
        return self._to_decode(pool, task.rendered.prompt, task.mm_hashes)

    def send_prefill(self, task: Task, engine: EngineInstance) -> tuple[Request, simpy.Event]:
        """Compose and send the call that computes a prompt; what the engine gets, and what fires when it does."""
        world, rendered = self._world, task.rendered
        payload, handles, tables = self._payload(task), task.handles or NO_HANDLES, rendered.tables
        if tables is None:
            nbytes = text_prefill_bytes(task.request_id, rendered.prompt.num_tokens, hands_over=self.hands_over)
            sent = LegSent(world.env.now, NAME, task.request_id, self._stage, engine.name, nbytes, payload)
        else:
            # Told as well where nothing is encoded apart: what each choice would weigh.
            ec = handles.params if self._encodes_apart else ec_params(rendered)
            legs = prefill_legs(rendered, ec, hands_over=self.hands_over)
            sizes = {name: body_bytes(leg) for name, leg in legs.items()}
            nbytes, tables = sizes[payload], tables if payload == "deferred" else legs[payload].tables
            sent = LegSent(world.env.now, NAME, task.request_id, self._stage, engine.name, nbytes, payload, sizes)
        request = Request(
            task.request_id,
            rendered.prompt,
            1 if self.hands_over else task.num_left,
            features_of(tables, world.config.dialect) if tables else (),
            priority=task.source.priority,
            arrival_time=task.source.arrival_ms,
            remote_embeds=handles.remote_embeds,
            ec_offers=handles.offers,
        )
        world.emit(sent)
        again_ms = self._render_again_ms(task) if payload == "deferred" else 0.0
        return request, self._way(nbytes, engine.name, again_ms)

    def send_decode(
        self, task: Task, engine: EngineInstance, kv_transfer: KvTransfer = WITHIN_STEP
    ) -> tuple[Request, simpy.Event]:
        """The same of the call that generates, from a KV cache that comes as it says."""
        world, rendered, num_tokens = self._world, task.rendered, task.rendered.prompt.num_tokens
        num_blocks, tables = -(-num_tokens // engine.block_size), rendered.tables
        if tables is None:
            nbytes = text_decode_bytes(task.request_id, num_tokens, num_blocks)
        else:
            leg = decode_call(rendered, num_blocks)
            nbytes, tables = body_bytes(leg), leg.tables
        request = Request(
            task.request_id,
            rendered.prompt,
            task.num_left,
            features_of(tables, world.config.dialect) if tables else (),
            priority=task.source.priority,
            arrival_time=task.source.arrival_ms,
            num_remote_tokens=num_tokens,
            kv_transfer=kv_transfer,
        )
        world.emit(LegSent(world.env.now, NAME, task.request_id, "decode", engine.name, nbytes))
        return request, self._way(nbytes, engine.name)

    def answer(
        self,
        engine: EngineInstance,
        request: Request,
        task: Task,
        way: simpy.Event,
        *,
        is_visible: bool,
        beside: Sequence[simpy.Event] = (),
    ) -> Submission:
        """Have an engine do what a call asks for, and take it out there when what is waited for beside it fails.

        Returns:
            The call as the engine kept it.
        """
        with Outstanding(engine):
            job = yield from self.submit(engine, request, task, way, is_visible=is_visible, beside=beside)
            with Wanted(task, engine, job):
                yield simpy.AnyOf(self._world.env, [job.done, *beside]) if beside else job.done
        return job

    def submit(
        self,
        engine: EngineInstance,
        request: Request,
        task: Task,
        way: simpy.Event,
        *,
        is_visible: bool,
        beside: Sequence[simpy.Event] = (),
    ) -> Submission:
        """Bring a call to its engine, which begins with it once it has let go of an earlier one of the same name."""
        yield simpy.AnyOf(self._world.env, [way, *beside]) if beside else way
        gone = engine.gone(request.request_id)
        if gone is not None:
            yield gone
        task.check_client()
        return engine.submit(request, task.rendered, is_visible=is_visible, setback=task.setback)

    def _way(self, nbytes: int, to: str, again_ms: float = 0.0) -> simpy.Event:
        """A body's way to an instance."""
        return self._body.to(to).transfer([nbytes], self._world.config.costs.hop_ms + again_ms)

    def kv_bytes(self, task: Task) -> int:
        """The KV cache of a prompt."""
        return task.rendered.prompt.num_tokens * self._world.config.costs.kv_bytes_per_token

    def _payload(self, task: Task) -> str:
        if not task.rendered.items:
            return "none"
        return self._world.config.prefill_payload if self._encodes_apart else "full"

    def _render_again_ms(self, task: Task) -> float:
        """A worker that gets raw media processes it once more (vLLM issue 46722)."""
        items = task.rendered.items
        pixels, files = [item.pixels for item in items], [item.file_pixels for item in items]
        return self._world.config.costs.render.render_ms(pixels, file_pixels_per_item=files)
