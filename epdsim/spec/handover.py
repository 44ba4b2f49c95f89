"""Families EC, PROTO and KV end to end: what one instance of a fleet relies on, another one has done before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    FleetStarted,
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
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


class EcReady:
    """EC-READY."""

    def __init__(self) -> None:
        self._complete = set[str]()

    def by_kind(self) -> Monitor:
        """Look whether what is loaded was complete."""
        return {EncodeFinished: self._encoded, EcLoaded: self._loaded}

    def _encoded(self, event: EncodeFinished, _engine: EngineState) -> None:
        self._complete.update(event.mm_hashes)

    def _loaded(self, event: EcLoaded, _engine: EngineState) -> Iterator[Finding]:
        yield Reached(f"{event.mm_hash} is loaded")
        if event.mm_hash not in self._complete:
            yield Broken(
                f"{event.instance} loads the embedding of {event.mm_hash}, which no encoder has completed",
                (event.mm_hash,),
            )


class ProtoId:
    """PROTO-ID."""

    def __init__(self) -> None:
        self._rendered: dict[str, Sequence[str]] = {}
        self._places: dict[str, set[str]] = {}

    def by_kind(self) -> Monitor:
        """Compare every leg of a request with what was rendered."""
        return {
            Rendered: self._render,
            EncodeFinished: self._encoded,
            RequestQueued: self._queued,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _render(self, event: Rendered, _engine: EngineState) -> None:
        self._rendered[event.request_id] = event.mm_hashes
        self._places.pop(event.request_id, None)

    def _encoded(self, event: EncodeFinished, _engine: EngineState) -> list[Finding] | None:
        rendered = self._rendered.get(event.request_id)
        if rendered is None:
            return None
        is_wrong = not set(event.mm_hashes) <= set(rendered)
        return self._named(event, event.mm_hashes, rendered, is_wrong=is_wrong)

    def _queued(self, event: RequestQueued, _engine: EngineState) -> list[Finding] | None:
        rendered = self._rendered.get(event.request_id)
        if rendered is None or not (event.items or event.request_id in self._places):
            return None
        named = [item.identifier for item in event.items]
        return self._named(event, named, rendered, is_wrong=bool(named) and named != list(rendered))

    def _named(
        self, event: EncodeFinished | RequestQueued, named: Sequence[str], rendered: Sequence[str], *, is_wrong: bool
    ) -> list[Finding]:
        found: list[Finding] = []
        places = self._places.setdefault(event.request_id, set())
        if named:
            places.add(event.instance)
        if len(places) > 1:
            found.append(Reached(f"items of {event.request_id} are named in {len(places)} places"))
        if is_wrong:
            told = f"as {', '.join(named)}, and they were rendered as {', '.join(rendered) or 'none'}"
            subjects = event.request_id, *named
            found.append(Broken(f"{event.instance} knows items of {event.request_id} {told}", subjects))
        return found

    def _ends(self, event: RequestFinished | RequestFailed, _engine: EngineState) -> None:
        self._rendered.pop(event.request_id, None)
        self._places.pop(event.request_id, None)


class ProtoSuff:
    """PROTO-SUFF."""

    def __init__(self) -> None:
        self._complete: set[str] = set()
        self._of_a_fleet: set[str] = set()

    def by_kind(self) -> Monitor:
        """Look what stands for each item of a request that an engine gets."""
        return {
            RequestArrived: self._arrives,
            EncodeFinished: self._encoded,
            RequestQueued: self._queued,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _arrives(self, event: RequestArrived, _engine: EngineState) -> None:
        self._of_a_fleet.add(event.request_id)

    def _encoded(self, event: EncodeFinished, _engine: EngineState) -> None:
        self._complete.update(event.mm_hashes)

    def _ends(self, event: RequestFinished | RequestFailed, _engine: EngineState) -> None:
        self._of_a_fleet.discard(event.request_id)

    def _queued(self, event: RequestQueued, _engine: EngineState) -> Iterator[Finding] | None:
        # Who sends what to an engine alone is not told.
        return self._provided(event) if event.items and event.request_id in self._of_a_fleet else None

    def _provided(self, event: RequestQueued) -> Iterator[Finding]:
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
        # Whose KV cache may be handed over; anybody's, where no fleet tells.
        self._sources: Collection[str] | None = None

    def by_kind(self) -> Monitor:
        """Follow what is computed, moved and taken over."""
        return {
            FleetStarted: self._fleet,
            RequestArrived: self._begins,
            LegRetried: self._retried,
            StepPlanned: self._planned,
            KvTransferred: self._transferred,
            RequestQueued: self._queued,
            Admitted: self._admitted,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _fleet(self, event: FleetStarted, _engine: EngineState) -> None:
        self._sources = event.pools.get("prefill", ()) if "decode" in event.pools else ()

    def _begins(self, event: RequestArrived | LegRetried, _engine: EngineState) -> None:
        self._computed[event.request_id], self._arrived[event.request_id] = {}, {}

    def _retried(self, event: LegRetried, engine: EngineState) -> None:
        """What was lost with an instance is computed and moved again."""
        if event.leg == "generate":
            self._begins(event, engine)

    def _ends(self, event: RequestFinished | RequestFailed, _engine: EngineState) -> None:
        self._computed.pop(event.request_id, None)
        self._arrived.pop(event.request_id, None)
        self._awaits.discard(event.request_id)

    def _planned(self, event: StepPlanned, _engine: EngineState) -> None:
        instance, before = event.instance, event.num_computed_tokens
        if self._sources is not None and instance not in self._sources:
            return
        for request_id, count in event.num_scheduled_tokens.items():
            computed = self._computed.get(request_id)
            if computed is not None:
                computed[instance] = max(computed.get(instance, 0), before.get(request_id, 0) + count)

    def _transferred(self, event: KvTransferred, _engine: EngineState) -> tuple[Finding, ...] | None:
        arrived = self._arrived.get(event.request_id)
        if arrived is None:
            return None
        is_again = event.instance in arrived
        arrived[event.instance] = self._computed[event.request_id].get(event.source, 0)
        told = f"the KV cache of {event.request_id} comes to {event.instance} twice"
        return (Broken(told, (event.request_id,)),) if is_again else None

    def _queued(self, event: RequestQueued, _engine: EngineState) -> Iterator[Finding] | None:
        if event.request_id not in self._arrived:
            return None
        self._awaits.discard(event.request_id)
        if event.awaits_kv:
            self._awaits.add(event.request_id)
        elif event.num_remote_tokens:
            return self._takes_over(event)
        return None

    def _admitted(self, event: Admitted, _engine: EngineState) -> Iterator[Finding] | None:
        if event.num_remote_tokens and event.request_id in self._awaits and not event.resumed:
            return self._takes_over(event)
        return None

    def _takes_over(self, event: RequestQueued | Admitted) -> Iterator[Finding]:
        yield Reached(f"{event.request_id} takes over {event.num_remote_tokens} tokens")
        num_arrived = self._arrived[event.request_id].get(event.instance)
        if num_arrived is None or num_arrived < event.num_remote_tokens:
            told = "nothing has come" if num_arrived is None else f"{num_arrived} of them were computed"
            yield Broken(
                f"{event.request_id} takes over {event.num_remote_tokens} tokens at {event.instance}, and {told}",
                (event.request_id,),
            )


EC_READY = Property(
    "EC-READY",
    "An encoding is announced or served only after its bytes are complete.",
    "The consumer is told that it is missing, and never asks again.",
    "end to end",
    sometimes="an engine loads an embedding",
    evidence=("vLLM PRs 47941, 53176",),
    monitor=lambda: EcReady().by_kind(),
)
PROTO = (
    Property(
        "PROTO-ID",
        "A media item keeps one identifier across encode, prefill and decode in every cache configuration.",
        "The consumer looks under a key that the producer never used.",
        "end to end",
        sometimes="a request's items are named in two places",
        evidence=("vLLM PRs 56432, 12439", "LMCache PR 5055", "sglang PR 23481"),
        monitor=lambda: ProtoId().by_kind(),
    ),
    Property(
        "PROTO-SUFF",
        "Sufficiency is judged per item: payload, or metadata and an embedding of that item, or a hash that can be resolved.",
        "A payload is dropped for all items because a descriptor came for one.",
        "end to end",
        sometimes="an item comes to an engine without its payload",
        evidence=("vLLM PR 56070", "llm-d-router PR 2723", "dynamo PR 7827"),
        twin="ECV-COMPLETE",
        monitor=lambda: ProtoSuff().by_kind(),
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
    monitor=lambda: KvHand().by_kind(),
)
