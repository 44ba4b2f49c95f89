"""The orchestrator: one process per request that sends its legs in order and waits for what each owes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from epdsim.core.errors import EpdsimError
from epdsim.core.items import MediaFeature
from epdsim.core.request import Request
from epdsim.events import KvTransferred, LegSent, Rendered, RequestArrived, RequestFailed
from epdsim.fleet.bodies import KV_ENTRY_BYTES, body_bytes
from epdsim.fleet.config import PREFILL_PAYLOADS
from epdsim.fleet.encode import EncodeInstance, EncodeJob
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.render import ProcessorCache, RenderedRequest, Renderer
from epdsim.fleet.routing import router
from epdsim.fleet.world import World
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
        self._front_end = simpy.Resource(world.env, capacity=world.config.render.count)
        self._processor_cache = ProcessorCache(world.config.render.cache_bytes)
        self._kv_wires = {engine.name: simpy.Resource(world.env, capacity=1) for engine in decode}
        self._encoding: dict[str, simpy.Event] = {}

    def handle(self, source: WorkloadRequest) -> Steps:
        """The whole way of one request; ends with its last token or a failure event, never with an exception of its making."""
        world = self._world
        world.emit(RequestArrived(world.env.now, NAME, source.request_id, source.output_tokens, source.slo_class))
        try:
            rendered = self._renderer.render(source)
            yield from self._render(rendered)
            leased = yield from self._encode_media(rendered)
            try:
                yield from self._generate(rendered)
            finally:
                for mm_hash in leased:
                    world.ec_store.unpin(mm_hash)
        except EpdsimError as error:
            world.emit(RequestFailed(world.env.now, NAME, source.request_id, str(error), refused=True))

    def _render(self, rendered: RenderedRequest) -> Steps:
        world, costs = self._world, self._world.config.costs
        with self._front_end.request() as turn:
            yield turn
            hits = [
                self._processor_cache.hit(one.mm_hash, one.data.nbytes if one.data else 0) for one in rendered.features
            ]
            fresh = [pixels for pixels, hit in zip(rendered.pixels, hits, strict=True) if not hit]
            known = [pixels for pixels, hit in zip(rendered.pixels, hits, strict=True) if hit]
            num_text_tokens = rendered.prompt.num_tokens - sum(one.position.length for one in rendered.features)
            yield world.env.timeout(costs.render.render_ms(fresh, num_text_tokens, known))
        world.emit(
            Rendered(
                world.env.now,
                "render",
                rendered.source.request_id,
                rendered.prompt.num_tokens,
                sum(feature.position.length for feature in rendered.features),
                [feature.mm_hash for feature in rendered.features],
                sum(hits),
                rendered.payload_bytes,
            )
        )

    def _encode_media(self, rendered: RenderedRequest) -> Generator[simpy.Event, Any, list[str]]:
        """Have every item's embedding in the EC store; the leased identifiers, empty without encode instances."""
        if not self._encode:
            return []
        store, leased, pending = self._world.ec_store, list[str](), list[simpy.Event]()
        sending_ms = 0.0
        for index, feature in enumerate(rendered.features):
            mm_hash = feature.mm_hash
            if mm_hash in leased:
                continue
            if not store.is_ready(mm_hash) and not store.is_reserved(mm_hash):
                sending_ms = max(sending_ms, self._send_encode(rendered, index))
            if store.is_reserved(mm_hash):
                pending.append(self._encoding[mm_hash])
            store.pin(mm_hash)
            leased.append(mm_hash)
        if pending:
            yield self._world.env.timeout(sending_ms)
            yield simpy.AllOf(self._world.env, pending)
        return leased

    def _send_encode(self, rendered: RenderedRequest, index: int) -> float:
        """Reserve an item's entry and queue it at an encoder once its body has arrived; milliseconds of the body's way."""
        world, media, feature = self._world, rendered.media[index], rendered.features[index]
        instance = self._to_encode(self._encode)
        nbytes = body_bytes(media.num_tokens + 1, rendered.item_bytes[index : index + 1], "full")
        world.emit(LegSent(world.env.now, NAME, rendered.source.request_id, "encode", instance.name, nbytes, "full"))
        world.ec_store.reserve(feature.mm_hash, media.embedding_bytes)
        done = self._encoding[feature.mm_hash] = world.env.event()
        job = EncodeJob(rendered.source.request_id, feature.mm_hash, media.encoder_patches, media.embedding_bytes, done)
        way_ms = self._way_ms(nbytes)
        world.env.process(_later(world.env, way_ms, lambda: instance.submit(job)))
        return way_ms

    def _generate(self, rendered: RenderedRequest) -> Steps:
        world, source = self._world, rendered.source
        engine = self._to_prefill(self._prefill)
        payload = self._prefill_payload(rendered)
        request = Request(
            source.request_id,
            rendered.prompt,
            source.output_tokens if not self._decode else 1,
            tuple(_as_sent(feature, payload) for feature in rendered.features),
            priority=source.priority,
            arrival_time=source.arrival_ms,
            remote_embeds=frozenset(one.mm_hash for one in rendered.features) if self._encode else frozenset(),
        )
        leg = "prefill" if self._decode or self._encode else "aggregated"
        num_tokens, items = rendered.prompt.num_tokens, rendered.item_bytes
        nbytes = body_bytes(num_tokens, items, payload)
        by_payload = {choice: body_bytes(num_tokens, items, choice) for choice in PREFILL_PAYLOADS} if items else {}
        world.emit(LegSent(world.env.now, NAME, source.request_id, leg, engine.name, nbytes, payload, by_payload))
        yield world.env.timeout(self._way_ms(nbytes))
        yield engine.submit(request, rendered, is_visible=not self._decode)
        if self._decode:
            yield from self._hand_over(request, rendered, engine)

    def _hand_over(self, request: Request, rendered: RenderedRequest, prefill: EngineInstance) -> Steps:
        """Move the KV cache to a decode engine and let it generate all tokens from the prompt's last position on."""
        world, source = self._world, rendered.source
        engine = self._to_decode(self._decode)
        nbytes = body_bytes(rendered.prompt.num_tokens, rendered.item_bytes, "none") + KV_ENTRY_BYTES
        world.emit(LegSent(world.env.now, NAME, source.request_id, "decode", engine.name, nbytes))
        yield world.env.timeout(self._way_ms(nbytes))
        kv_bytes = rendered.prompt.num_tokens * world.config.costs.kv_bytes_per_token
        with self._kv_wires[engine.name].request() as turn:
            yield turn
            yield world.env.timeout(world.config.costs.kv_link.transfer_ms(kv_bytes))
        world.emit(KvTransferred(world.env.now, engine.name, source.request_id, prefill.name, kv_bytes))
        decode = replace(
            request,
            max_tokens=source.output_tokens,
            mm_features=tuple(replace(feature, data=None) for feature in request.mm_features),
            num_remote_tokens=rendered.prompt.num_tokens,
        )
        yield engine.submit(decode, rendered, is_visible=True)

    def _prefill_payload(self, rendered: RenderedRequest) -> str:
        if not rendered.features:
            return "none"
        return self._world.config.prefill_payload if self._encode else "full"

    def _way_ms(self, nbytes: int) -> float:
        costs = self._world.config.costs
        return costs.hop_ms + costs.body_link.transfer_ms(nbytes)


def _as_sent(feature: MediaFeature, payload: str) -> MediaFeature:
    """What of an item a leg carries; raw media is rendered again by the worker, so its item is whole there."""
    if payload != "metadata" or feature.data is None:
        return feature
    light = feature.data.subset()
    return replace(feature, data=light if light.fields else None)


def _later(env: simpy.Environment, delay_ms: float, then: Any) -> Steps:
    yield env.timeout(delay_ms)
    then()
