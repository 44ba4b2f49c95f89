"""The orchestrator: one process per request that sends its legs in order and waits for what each owes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from epdsim.core.errors import EpdsimError, InputError
from epdsim.core.legs import Leg, encode_legs
from epdsim.core.request import Request
from epdsim.core.slots import features_of
from epdsim.events import KvTransferred, LegSent, Rendered, RequestArrived, RequestFailed
from epdsim.fleet.composer import body_bytes, decode_call, prefill_legs, text_decode_bytes, text_prefill_bytes
from epdsim.fleet.encode import EncodeInstance, EncodeJob
from epdsim.fleet.engine import EngineInstance, RequestLostError
from epdsim.fleet.render import ProcessorCache, RenderedRequest, Renderer
from epdsim.fleet.routing import router
from epdsim.fleet.world import Desk, World
from epdsim.media import RenderedMedia
from epdsim.workload.request import WorkloadRequest

NAME = "orchestrator"

Steps = Generator[simpy.Event, Any, None]


class Orchestrator:
    """Carries requests through render, encode, prefill and decode, whichever of these the topology has.

    Args:
        world: Clock, configuration, sinks.
        renderer: Turns workload requests into prompts.
        prefill: Engines that compute prompts.
        decode: Engines that generate; empty when prefill does.
        encode: Encode instances; empty when prefill encodes.
    """

    def __init__(
        self,
        world: World,
        renderer: Renderer,
        prefill: Sequence[EngineInstance],
        decode: Sequence[EngineInstance],
        encode: Sequence[EncodeInstance],
    ) -> None:
        self._world, self._renderer = world, renderer
        self._prefill, self._decode, self._encode = prefill, decode, encode
        self._to_prefill, self._to_decode, self._to_encode = (router(world.config.router) for _ in range(3))
        self._front_end = Desk(world, world.config.render.count)
        self._processor_cache = ProcessorCache(world.config.render.cache_bytes)
        self._kv_wires = {engine.name: Desk(world, 1) for engine in decode}
        self._encoding: dict[str, simpy.Event] = {}
        self._in_flight: dict[str, str] = {}

    def handle(self, source: WorkloadRequest) -> Steps:
        """The whole way of one request; ends with its last token or a failure event, never with an error of the input."""
        world = self._world
        world.emit(RequestArrived(world.env.now, NAME, source.request_id, source.output_tokens, source.slo_class))
        self._in_flight[source.request_id] = "render"
        try:
            rendered = self._renderer.render(source)
            yield from self._render(rendered)
            self._in_flight[source.request_id] = "encode"
            leased = (yield from self._encode_media(rendered)) if self._encode else ()
            self._in_flight[source.request_id] = "generate"
            try:
                yield from self._generate(rendered)
            finally:
                for mm_hash in leased:
                    world.ec_store.unpin(mm_hash)
        except EpdsimError as error:
            # The value names the request, which the event does already: without it, equal reasons are equal.
            reason = (
                "; ".join(filter(None, (error.rule, error.remedy))) if isinstance(error, InputError) else str(error)
            )
            refused = not isinstance(error, RequestLostError)
            world.emit(RequestFailed(world.env.now, NAME, source.request_id, reason, refused=refused))
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

    def _encode_media(self, rendered: RenderedRequest) -> Generator[simpy.Event, Any, list[str]]:
        """Have every item's embedding in the EC store; the leased identifiers."""
        store, leased, pending = self._world.ec_store, list[str](), list[simpy.Event]()
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
        return leased

    def _send_encode(self, rendered: RenderedRequest, leg: Leg, mm_hash: str, media: RenderedMedia) -> None:
        """Reserve an item's entry, and queue it at an encoder once its body has arrived."""
        world, request_id = self._world, rendered.source.request_id
        instance = self._to_encode(self._encode, rendered.prompt)
        nbytes = body_bytes(leg)
        world.emit(LegSent(world.env.now, NAME, request_id, "encode", instance.name, nbytes, "full"))
        world.ec_store.reserve(mm_hash, media.embedding_bytes)
        instance.outstanding += 1
        done = self._encoding[mm_hash] = world.env.event()
        job = EncodeJob(request_id, mm_hash, media.encoder_patches, media.embedding_bytes, done)
        arrival = world.after(self._way_ms(nbytes))
        arrival.callbacks.append(lambda _: instance.submit(job))

    def _generate(self, rendered: RenderedRequest) -> Steps:
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
        stage = "prefill" if self._decode or self._encode else "aggregated"
        request = Request(
            source.request_id,
            rendered.prompt,
            1 if hands_over else source.output_tokens,
            features_of(tables, world.config.dialect) if tables else (),
            priority=source.priority,
            arrival_time=source.arrival_ms,
            remote_embeds=frozenset(rendered.media) if self._encode else frozenset(),
        )
        engine = self._to_prefill(self._prefill, rendered.prompt)
        counted = by_payload if rendered.items else {}
        sent = LegSent(
            world.env.now, NAME, source.request_id, stage, engine.name, by_payload[payload], payload, counted
        )
        world.emit(sent)
        again_ms = self._render_again_ms(rendered) if payload == "deferred" else 0.0
        yield from self._call(
            engine, request, rendered, self._way_ms(sent.body_bytes) + again_ms, is_visible=not self._decode
        )
        if self._decode:
            yield from self._hand_over(rendered, engine)

    def _hand_over(self, rendered: RenderedRequest, prefill: EngineInstance) -> Steps:
        """Move the KV cache to a decode engine and let it generate all tokens from the prompt's last position on."""
        world, source, num_tokens = self._world, rendered.source, rendered.prompt.num_tokens
        engine = self._to_decode(self._decode, rendered.prompt)
        num_blocks, tables = -(-num_tokens // engine.block_size), rendered.tables
        if tables is None:
            nbytes = text_decode_bytes(source.request_id, num_tokens, num_blocks)
        else:
            leg = decode_call(rendered, num_blocks)
            nbytes, tables = body_bytes(leg), leg.tables
        world.emit(LegSent(world.env.now, NAME, source.request_id, "decode", engine.name, nbytes))
        yield world.after(self._way_ms(nbytes))
        kv_bytes = num_tokens * world.config.costs.kv_bytes_per_token
        wire = self._kv_wires[engine.name]
        turn = wire.enter()
        if turn is not None:
            yield turn
        yield world.after(world.config.costs.kv_link.transfer_ms(kv_bytes))
        wire.leave()
        world.emit(KvTransferred(world.env.now, engine.name, source.request_id, prefill.name, kv_bytes))
        request = Request(
            source.request_id,
            rendered.prompt,
            source.output_tokens,
            features_of(tables, world.config.dialect) if tables else (),
            priority=source.priority,
            arrival_time=source.arrival_ms,
            num_remote_tokens=num_tokens,
        )
        yield from self._call(engine, request, rendered, 0.0, is_visible=True)

    def _call(
        self, engine: EngineInstance, request: Request, rendered: RenderedRequest, way_ms: float, *, is_visible: bool
    ) -> Steps:
        """Send a request to an engine and wait for its answer; in the orchestrator's books from sending on."""
        engine.outstanding += 1
        try:
            yield self._world.after(way_ms)
            yield engine.submit(request, rendered, is_visible=is_visible)
        finally:
            engine.outstanding -= 1

    def _prefill_payload(self, rendered: RenderedRequest) -> str:
        if not rendered.items:
            return "none"
        return self._world.config.prefill_payload if self._encode else "full"

    def _render_again_ms(self, rendered: RenderedRequest) -> float:
        """A worker that gets raw media processes it once more (vLLM issue 46722)."""
        return self._world.config.costs.render.render_ms([item.pixels for item in rendered.items])

    def _way_ms(self, nbytes: int) -> float:
        costs = self._world.config.costs
        return costs.hop_ms + costs.body_link.transfer_ms(nbytes)
