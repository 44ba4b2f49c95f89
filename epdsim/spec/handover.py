"""Families EC, PROTO and KV end to end: what one instance of a fleet relies on, another one has done before."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    Event,
    KvTransferred,
    LegRetried,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepPlanned,
)
from epdsim.spec.engine_state import PAYLOADS, EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached


class EcReady:
    """EC-READY."""

    def __init__(self) -> None:
        self._complete: dict[str, float] = {}

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Look whether what is loaded was complete."""
        if isinstance(event, EncodeFinished):
            for mm_hash in event.mm_hashes:
                self._complete.setdefault(mm_hash, event.time_ms)
        elif isinstance(event, EcLoaded):
            yield Reached(f"{event.mm_hash} is loaded")
            if event.mm_hash not in self._complete:
                yield Broken(
                    f"{event.instance} loads the embedding of {event.mm_hash}, which no encoder has completed",
                    (event.mm_hash,),
                )


class ProtoId:
    """PROTO-ID."""

    def __init__(self) -> None:
        self._rendered: dict[str, list[str]] = {}
        self._legs: dict[str, set[str]] = {}

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Compare every leg of a request with what was rendered."""
        if isinstance(event, Rendered):
            self._rendered[event.request_id] = list(event.mm_hashes)
            self._legs[event.request_id] = set()
        elif isinstance(event, (RequestFinished, RequestFailed)):
            self._rendered.pop(event.request_id, None)
            self._legs.pop(event.request_id, None)
        elif isinstance(event, (EncodeFinished, RequestQueued)) and event.request_id in self._rendered:
            rendered, known = self._rendered[event.request_id], self._legs[event.request_id]
            if isinstance(event, EncodeFinished):
                named, is_wrong = list(event.mm_hashes), bool(set(event.mm_hashes) - set(rendered))
            else:
                named = [item.identifier for item in event.items]
                is_wrong = named not in ([], rendered)
            if named:
                known.add(event.instance)
            if len(known) > 1:
                yield Reached(f"items of {event.request_id} are named in {len(known)} places")
            if is_wrong:
                yield Broken(
                    f"{event.instance} knows items of {event.request_id} as {', '.join(named)}, and they were rendered as "
                    f"{', '.join(rendered) or 'none'}",
                    (event.request_id, *named),
                )


class ProtoSuff:
    """PROTO-SUFF."""

    def __init__(self) -> None:
        self._complete: set[str] = set()
        self._of_a_fleet: set[str] = set()

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Look what stands for each item of a request that an engine gets."""
        if isinstance(event, RequestArrived):
            self._of_a_fleet.add(event.request_id)
        if isinstance(event, (RequestFinished, RequestFailed)):
            self._of_a_fleet.discard(event.request_id)
        if isinstance(event, EncodeFinished):
            self._complete |= set(event.mm_hashes)
        # Who sends what to an engine alone is not told.
        if not isinstance(event, RequestQueued) or event.request_id not in self._of_a_fleet:
            return
        for item in event.items:
            # Items whose tokens are handed over are not encoded again.
            if item.payload in PAYLOADS or item.end <= event.num_remote_tokens:
                continue
            yield Reached(f"{item.identifier} of {event.request_id} comes without payload")
            if item.identifier not in self._complete:
                yield Broken(
                    f"{event.request_id} comes to {event.instance} with {item.payload} alone of {item.identifier}, which nobody "
                    f"has encoded",
                    (event.request_id, item.identifier),
                )


class KvHand:
    """KV-HAND."""

    def __init__(self) -> None:
        self._computed: dict[str, dict[str, int]] = {}
        self._arrived: dict[str, dict[str, int]] = {}
        self._awaits: set[str] = set()

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Follow what is computed, moved and taken over."""
        match event:
            case RequestArrived() | LegRetried(leg="generate"):
                # What was lost with an instance is computed and moved again.
                self._computed[event.request_id], self._arrived[event.request_id] = {}, {}
            case RequestFinished() | RequestFailed():
                self._computed.pop(event.request_id, None)
                self._arrived.pop(event.request_id, None)
                self._awaits.discard(event.request_id)
            case StepPlanned():
                for request_id, count in event.num_scheduled_tokens.items():
                    computed = self._computed.get(request_id)
                    if computed is not None:
                        end = event.num_computed_tokens.get(request_id, 0) + count
                        computed[event.instance] = max(computed.get(event.instance, 0), end)
            case KvTransferred() if event.request_id in self._arrived:
                arrived = self._arrived[event.request_id]
                if event.instance in arrived:
                    told = f"the KV cache of {event.request_id} comes to {event.instance} twice"
                    yield Broken(told, (event.request_id,))
                arrived[event.instance] = self._computed[event.request_id].get(event.source, 0)
            case RequestQueued() if event.request_id in self._arrived:
                self._awaits.discard(event.request_id)
                if event.awaits_kv:
                    self._awaits.add(event.request_id)
                elif event.num_remote_tokens:
                    yield from self._takes_over(event)
            case Admitted() if event.num_remote_tokens and event.request_id in self._awaits and not event.resumed:
                yield from self._takes_over(event)
            case _:
                pass

    def _takes_over(self, event: RequestQueued | Admitted) -> Iterator[Finding]:
        yield Reached(f"{event.request_id} takes over {event.num_remote_tokens} tokens")
        num_arrived = self._arrived[event.request_id].get(event.instance)
        if num_arrived is None or num_arrived < event.num_remote_tokens:
            told = "nothing has come" if num_arrived is None else f"{num_arrived} of them were computed"
            yield Broken(
                f"{event.request_id} takes over {event.num_remote_tokens} tokens at {event.instance}, and {told}",
                (event.request_id,),
            )


_ENDS = (RequestFinished, RequestFailed)
EC_READY = Property(
    "EC-READY",
    "An encoding is announced or served only after its bytes are complete.",
    "The consumer is told that it is missing, and never asks again.",
    "end to end",
    sometimes="an engine loads an embedding",
    evidence=("vLLM PRs 47941, 53176",),
    monitor=EcReady,
    reads=(EncodeFinished, EcLoaded),
)
PROTO = (
    Property(
        "PROTO-ID",
        "A media item keeps one identifier across encode, prefill and decode in every cache configuration.",
        "The consumer looks under a key that the producer never used.",
        "end to end",
        sometimes="a request's items are named in two places",
        evidence=("vLLM PRs 56432, 12439", "LMCache PR 5055", "sglang PR 23481"),
        monitor=ProtoId,
        reads=(Rendered, EncodeFinished, RequestQueued, *_ENDS),
    ),
    Property(
        "PROTO-SUFF",
        "Sufficiency is judged per item: payload, or metadata and an embedding of that item, or a hash that can be resolved.",
        "A payload is dropped for all items because a descriptor came for one.",
        "end to end",
        sometimes="an item comes to an engine without its payload",
        evidence=("vLLM PR 56070", "llm-d-router PR 2723", "dynamo PR 7827"),
        twin="ECV-COMPLETE",
        monitor=ProtoSuff,
        reads=(RequestArrived, EncodeFinished, RequestQueued, *_ENDS),
    ),
)
KV_HAND = Property(
    "KV-HAND",
    "A decode engine takes over the KV cache of as many tokens as the prefill has computed, once, and after it has come.",
    "It decodes from KV cache that is not there: an answer about nothing.",
    "end to end",
    sometimes="a request takes over tokens",
    evidence=("vLLM issue 49250", "LMCache PR 2069"),
    twin="TOK-CONS",
    monitor=KvHand,
    reads=(RequestArrived, LegRetried, StepPlanned, KvTransferred, RequestQueued, Admitted, *_ENDS),
)
