"""The orchestrator: one process per request that sends its legs in order and waits for what each owes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import simpy

from epdsim.core.errors import EpdsimError, InputError
from epdsim.core.legs import Leg, encode_legs
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.slots import features_of
from epdsim.events import KvTransferred, LegRetried, LegSent, Rendered, RequestArrived, RequestFailed
from epdsim.fleet.composer import body_bytes, decode_call, prefill_legs, text_decode_bytes, text_prefill_bytes
from epdsim.fleet.encode import EncodeInstance, EncodeJob
from epdsim.fleet.engine import EngineInstance, Setback
from epdsim.fleet.faults import Health, InstanceLostError, RequestLostError
from epdsim.fleet.lines import Lines
from epdsim.fleet.render import ProcessorCache, RenderedRequest, Renderer
from epdsim.fleet.routing import router
from epdsim.fleet.world import Desk, World
from epdsim.media import RenderedMedia
from epdsim.workload.request import WorkloadRequest

NAME = "orchestrator"
_LOST = "{} was lost with its instance {} times, and no more than {} retries are allowed"

Steps = Generator[simpy.Event, Any, None]


class Orchestrator:
    """Carries requests through render, encode, prefill and decode, whichever of these the topology has.

    Args:
        world: Clock, configuration, sinks.
        renderer: Turns workload requests into prompts.
        prefill: Engines that compute prompts.
        decode: Engines that generate; empty when prefill does.
        body: What bodies travel on.
        kv: What KV caches travel on.
        health: Knows which instances are lost; None when none ever is.

    Attributes:
        encode: Encode instances; empty when prefill encodes.
    """

    def __init__(
        self,
        world: World,
        renderer: Renderer,
        prefill: Sequence[EngineInstance],
        decode: Sequence[EngineInstance],
        body: Lines,
        kv: Lines,
        health: Health | None,
    ) -> None:
        self._world, self._renderer = world, renderer
        self._prefill, self._decode = prefill, decode
        self.encode: Sequence[EncodeInstance] = ()
        self._body, self._kv, self._health = body, kv, health
        self._max_retries = world.config.faults.max_retries if world.config.faults is not None else 0
        self._to_prefill, self._to_decode, self._to_encode = (router(world.config.router) for _ in range(3))
        self._front_end = Desk(world, world.config.render.count)
        self._processor_cache = ProcessorCache(world.config.render.cache_bytes)
        self._encoding: dict[str, simpy.Event] = {}
        self._given_up: set[str] = set()
        self._in_flight: dict[str, str] = {}

    @property
    def instances(self) -> Iterator[EngineInstance | EncodeInstance]:
        """All that it sends legs to."""
        return chain(self._prefill, self._decode, self.encode)

    def handle(self, source: WorkloadRequest) -> Steps:
        """The whole way of one request; ends with its last token or a failure event, never with an error of the input."""
        world = self._world
        world.emit(RequestArrived(world.env.now, NAME, source.request_id, source.output_tokens, source.slo_class))
        self._in_flight[source.request_id] = "render"
        leased: list[str] = []
        try:
            rendered = self._renderer.render(source)
            yield from self._render(rendered)
            self._in_flight[source.request_id] = "encode"
            if self.encode:
                yield from self._encode_media(rendered, leased)
            self._in_flight[source.request_id] = "generate"
            yield from self._serve(rendered)
        except EpdsimError as error:
            # The value names the request, which the event does already: without it, equal reasons are equal.
            reason = (
                "; ".join(filter(None, (error.rule, error.remedy))) if isinstance(error, InputError) else str(error)
            )
            refused = not isinstance(error, RequestLostError)
            world.emit(RequestFailed(world.env.now, NAME, source.request_id, reason, refused=refused))
        finally:
            self._return(leased)
        del self._in_flight[source.request_id]

    def fail_stuck(self) -> None:
        """At the end of time: whatever is still under way waits for something that cannot happen (property SIM-PROG)."""
        for request_id, stage in self._in_flight.items():
            reason = f"stuck in {stage}: nothing in the fleet can move it any more"
            self._world.emit(RequestFailed(self._world.env.now, NAME, request_id, reason, stuck=True))
        self._in_flight.clear()

    def _render(self, rendered: RenderedRequest) -> Steps:
        world, items = self._world, rendered.items
        turn = self._front_end.enter()
        if turn is not None:
            yield turn
        hits = [self._processor_cache.hit(item.mm_hash, item.media.item.nbytes) for item in items]
        fresh = [item.pixels for item, hit in zip(items, hits, strict=True) if not hit]
        known = [item.pixels for item, hit in zip(items, hits, strict=True) if hit]
        num_text_tokens = rendered.prompt.num_tokens - rendered.num_media_tokens
        duration_ms = world.config.costs.render.render_ms(fresh, num_text_tokens, known)
        yield world.after(duration_ms)
        self._front_end.leave()
        world.emit(
            Rendered(
                world.env.now,
                "render",
                rendered.source.request_id,
                rendered.prompt.num_tokens,
                rendered.num_media_tokens,
                [item.mm_hash for item in items],
                sum(hits),
                sum(item.media.item.nbytes for item in items),
                duration_ms,
            )
        )

    def _encode_media(self, rendered: RenderedRequest, leased: list[str]) -> Steps:
        """Have every item's embedding in the EC store; identifiers are added to `leased` as they are."""
        store, pending = self._world.ec_store, list[simpy.Event]()
        legs = encode_legs(rendered.source.request_id, rendered.prompt, rendered.tables)
        for leg, (mm_hash, media) in zip(legs, rendered.media.items(), strict=True):
            if not store.is_ready(mm_hash) and not store.is_reserved(mm_hash):
                self._send_encode(rendered, leg, mm_hash, media)
            if store.is_reserved(mm_hash):
                pending.append(self._encoding[mm_hash])
            store.pin(mm_hash)
            leased.append(mm_hash)
        if pending:
            yield simpy.AllOf(self._world.env, pending)

    def _return(self, leased: Sequence[str]) -> None:
        """Give leases back; an entry that nobody will fill goes with the last of them."""
        store = self._world.ec_store
        for mm_hash in leased:
            store.unpin(mm_hash)
            if mm_hash in self._given_up and not store.is_pinned(mm_hash):
                store.evict(mm_hash)
                self._given_up.discard(mm_hash)

    def _send_encode(self, rendered: RenderedRequest, leg: Leg, mm_hash: str, media: RenderedMedia) -> None:
        """Reserve an item's entry, and send it to an encoder."""
        self._world.ec_store.reserve(mm_hash, media.embedding_bytes)
        done = self._encoding[mm_hash] = self._world.env.event()
        job = EncodeJob(
            rendered.source.request_id,
            mm_hash,
            media.encoder_patches,
            media.embedding_bytes,
            rendered.prompt,
            body_bytes(leg),
            done,
        )
        if self._health is None:
            self._dispatch(job, self.encode)
        else:
            self._world.env.process(self._dispatch_to_living(job, self._health))

    def _dispatch(self, job: EncodeJob, pool: Sequence[EncodeInstance]) -> None:
        """Queue an item at an encoder once its body has arrived."""
        world = self._world
        instance = self._to_encode(pool, job.prompt)
        world.emit(LegSent(world.env.now, NAME, job.request_id, "encode", instance.name, job.body_bytes, "full"))
        instance.outstanding += 1
        arrival = world.after(self._way_ms(job.body_bytes, instance.name))
        arrival.callbacks.append(lambda _: instance.submit(job))

    def _dispatch_to_living(self, job: EncodeJob, health: Health) -> Steps:
        try:
            pool = yield from health.up(self.encode, "encode")
        except RequestLostError as error:
            self._give_up(job, error)
        else:
            self._dispatch(job, pool)

    def encode_again(self, job: EncodeJob, instance: EncodeInstance) -> None:
        """An item was lost with its encoder: send it again, or let all who wait for it fail."""
        assert self._health is not None, "only what can be lost is"
        world = self._world
        instance.outstanding -= 1
        if job.attempts > self._max_retries:
            self._give_up(job, RequestLostError(_LOST.format("an item", job.attempts, self._max_retries)))
            return
        world.emit(LegRetried(world.env.now, NAME, job.request_id, "encode", instance.name, job.attempts))
        world.env.process(self._dispatch_to_living(job, self._health))

    def _give_up(self, job: EncodeJob, error: RequestLostError) -> None:
        self._given_up.add(job.mm_hash)
        job.done.fail(error)
        job.done.defused = True

    def _serve(self, rendered: RenderedRequest) -> Steps:
        """Generate; what was lost with an instance is computed again, with the tokens that the client has as part of the prompt."""
        world, setback, going = self._world, None, rendered
        for attempt in count():
            try:
                yield from self._generate(going, setback)
            except InstanceLostError as lost:
                if attempt == self._max_retries:
                    raise RequestLostError(_LOST.format("the request", attempt + 1, self._max_retries)) from lost
                delivered = (setback.delivered_tokens if setback is not None else 0) + lost.output_tokens
                setback, going = Setback(lost.lost_ms, delivered), _with_output(rendered, delivered)
                name = rendered.source.request_id
                world.emit(LegRetried(world.env.now, NAME, name, "generate", lost.instance, attempt + 1, delivered))
            else:
                return

    def _living(
        self, pool: Sequence[EngineInstance], stage: str
    ) -> Generator[simpy.Event, Any, Sequence[EngineInstance]]:
        return pool if self._health is None else (yield from self._health.up(pool, stage))

    def _generate(self, rendered: RenderedRequest, setback: Setback | None) -> Steps:
        world, source = self._world, rendered.source
        payload, hands_over, tables = self._prefill_payload(rendered), bool(self._decode), rendered.tables
        if tables is None:
            by_payload = {
                payload: text_prefill_bytes(source.request_id, rendered.prompt.num_tokens, hands_over=hands_over)
            }
        else:
            legs = prefill_legs(rendered, hands_over=hands_over)
            by_payload = {name: body_bytes(leg) for name, leg in legs.items()}
            tables = tables if payload == "deferred" else legs[payload].tables
        stage = "prefill" if self._decode or self.encode else "aggregated"
        num_left = source.output_tokens - (setback.delivered_tokens if setback is not None else 0)
        request = Request(
            source.request_id,
            rendered.prompt,
            1 if hands_over else num_left,
            features_of(tables, world.config.dialect) if tables else (),
            priority=source.priority,
            arrival_time=source.arrival_ms,
            remote_embeds=frozenset(rendered.media) if self.encode else frozenset(),
        )
        engine = self._to_prefill((yield from self._living(self._prefill, stage)), rendered.prompt)
        counted = by_payload if rendered.items else {}
        sent = LegSent(
            world.env.now, NAME, source.request_id, stage, engine.name, by_payload[payload], payload, counted
        )
        world.emit(sent)
        again_ms = self._render_again_ms(rendered) if payload == "deferred" else 0.0
        way_ms = self._way_ms(sent.body_bytes, engine.name) + again_ms
        yield from self._call(engine, request, rendered, way_ms, setback, is_visible=not self._decode)
        if self._decode:
            yield from self._hand_over(rendered, engine, num_left, setback)

    def _hand_over(
        self, rendered: RenderedRequest, prefill: EngineInstance, num_left: int, setback: Setback | None
    ) -> Steps:
        """Move the KV cache to a decode engine and let it generate all tokens from the prompt's last position on."""
        world, source, num_tokens = self._world, rendered.source, rendered.prompt.num_tokens
        num_losses = prefill.num_losses
        engine = self._to_decode((yield from self._living(self._decode, "decode")), rendered.prompt)
        num_blocks, tables = -(-num_tokens // engine.block_size), rendered.tables
        if tables is None:
            nbytes = text_decode_bytes(source.request_id, num_tokens, num_blocks)
        else:
            leg = decode_call(rendered, num_blocks)
            nbytes, tables = body_bytes(leg), leg.tables
        world.emit(LegSent(world.env.now, NAME, source.request_id, "decode", engine.name, nbytes))
        yield world.after(self._way_ms(nbytes, engine.name))
        kv_bytes = num_tokens * world.config.costs.kv_bytes_per_token
        yield world.after(self._kv.to(engine.name).send([kv_bytes]))
        if prefill.num_losses != num_losses:
            raise InstanceLostError(prefill.name, world.env.now)
        world.emit(KvTransferred(world.env.now, engine.name, source.request_id, prefill.name, kv_bytes))
        request = Request(
            source.request_id,
            rendered.prompt,
            num_left,
            features_of(tables, world.config.dialect) if tables else (),
            priority=source.priority,
            arrival_time=source.arrival_ms,
            num_remote_tokens=num_tokens,
        )
        yield from self._call(engine, request, rendered, 0.0, setback, is_visible=True)

    def _call(
        self,
        engine: EngineInstance,
        request: Request,
        rendered: RenderedRequest,
        way_ms: float,
        setback: Setback | None,
        *,
        is_visible: bool,
    ) -> Steps:
        """Send a request to an engine and wait for its answer; in the orchestrator's books from sending on."""
        engine.outstanding += 1
        try:
            yield self._world.after(way_ms)
            yield engine.submit(request, rendered, is_visible=is_visible, setback=setback)
        finally:
            engine.outstanding -= 1

    def _prefill_payload(self, rendered: RenderedRequest) -> str:
        if not rendered.items:
            return "none"
        return self._world.config.prefill_payload if self.encode else "full"

    def _render_again_ms(self, rendered: RenderedRequest) -> float:
        """A worker that gets raw media processes it once more (vLLM issue 46722)."""
        return self._world.config.costs.render.render_ms([item.pixels for item in rendered.items])

    def _way_ms(self, nbytes: int, to: str) -> float:
        return self._world.config.costs.hop_ms + self._body.to(to).send([nbytes])


def _with_output(rendered: RenderedRequest, num_tokens: int) -> RenderedRequest:
    """A request whose prompt goes on with output that the client has."""
    if not num_tokens:
        return rendered
    output = TokenRun(("output", rendered.source.request_id), 0, num_tokens)
    return replace(rendered, prompt=RunPrompt([*rendered.prompt.runs, output]))
