"""Puts a case to a system and tells as events what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from epdsim.core.errors import InputError
from epdsim.core.items import Field, FieldData, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.slots import DeclaredFields
from epdsim.events import (
    CheckedItem,
    Event,
    FeaturesStripped,
    ItemsMerged,
    MergedItem,
    RenderedItem,
    RequestChecked,
    Sink,
    SpanInfo,
    StrippedItem,
    TablesRendered,
)
from epdsim.sut.broadcast_cases import BroadcastCase, broadcast
from epdsim.sut.cache_cases import MirrorCase, RingCase
from epdsim.sut.caches import CachesUnderTest
from epdsim.sut.cases import (
    Case,
    CaseField,
    CaseItem,
    CheckCase,
    EngineCase,
    RenderCase,
    StripCase,
    features_to_strip,
    rendered_of,
    spans_of,
)
from epdsim.sut.family_cases import FamilyCase, weigh
from epdsim.sut.identity_cases import HashCase, KeyCase
from epdsim.sut.position_cases import PositionCase
from epdsim.sut.probe_caches import play_mirror, play_ring
from epdsim.sut.probe_identity import ask_hashes, ask_keys
from epdsim.sut.probe_positions import ask_positions
from epdsim.sut.systems import ProtocolUnderTest, SystemUnderTest
from epdsim.sut.told import tell_play
from epdsim.wire.codec import kind_arguments, raw_bytes

INSTANCE = "protocol"


def put(case: Case, system: SystemUnderTest, sink: Sink) -> None:
    """Put a case to a system; the events go to the sink.

    Raises:
        InputError: The system lacks what the case is put to.
    """
    level, lacking, ask = _WAYS[type(case)]
    asked = getattr(system, level)
    if asked is None:
        raise InputError(f"system {system.title}", f"it {lacking}")
    ask(case, asked, system, sink)


def events_of(case: Case, system: SystemUnderTest) -> list[Event]:
    """What a system does with a case."""
    events: list[Event] = []
    put(case, system, events.append)
    return events


def field_digest(field: Field) -> str:
    """Digest of a field: dtypes, shapes, bytes, nesting and kind."""
    kind = kind_arguments(field.kind)
    digest = blake2b(repr(kind).encode(), digest_size=6)
    for piece in _pieces(field.data):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(data: FieldData) -> Iterator[bytes]:
    if isinstance(data, TensorHandle):
        yield f"{data.dtype}{data.shape}".encode()
        yield bytes(raw_bytes(data))
    elif isinstance(data, tuple):
        yield b"["
        for part in data:
            yield from _pieces(part)
        yield b"]"
    else:
        yield repr(data).encode()


def _slot(item: MediaItem | None) -> dict[str, str] | None:
    return None if item is None else {name: field_digest(one) for name, one in item.fields.items()}


def _span(position: PlaceholderRange) -> SpanInfo:
    return SpanInfo(position.offset, position.length, None if position.is_embed is None else list(position.is_embed))


def _render(case: RenderCase, protocol: ProtocolUnderTest, sink: Sink) -> None:
    items = [
        RenderedItem(
            one.modality,
            one.mm_hash,
            _span(span),
            _slot(one.item()),
            [field.name for field in one.fields or () if field.keep_on_cpu],
            case.declared.get(one.modality, []) if case.fails_at is None else [],
        )
        for one, span in zip(case.items, spans_of(case.items), strict=True)
    ]
    features = _extract(case, protocol, sink, items, "c0", None)
    if case.order:
        _extract(case, protocol, sink, items, "c0/permuted", case.order)
    if features is None:
        return
    rendered = {item.span.offset: item for item in items}
    _merge(protocol, features, rendered, "c0", sink)
    light = {key: value for key, value in features.items() if key != "kwargs_data"}
    _merge(protocol, light, rendered, "c0/light", sink)


def _extract(
    case: RenderCase,
    protocol: ProtocolUnderTest,
    sink: Sink,
    items: Sequence[RenderedItem],
    name: str,
    order: Mapping[str, Sequence[int]] | None,
) -> Mapping[str, Any] | None:
    """Render once; the tables, or None when there are none."""
    notices: list[str] = []
    told: dict[str, Any] = {"permutes": "c0", "order": order} if order else {}
    told["declared_failed"] = case.fails_at is not None
    features: Mapping[str, Any] | None = None
    try:
        features = protocol.extract(rendered_of(case, order), _declared(case, notices))
    except Exception as error:  # noqa: BLE001 - whatever a system fails with is a finding
        told["refused"] = _reason(error)
    else:
        if features is not None:
            told |= _tables(features, protocol)
            told["rejected"] = _rejected(case, features, protocol)
    sink(TablesRendered(0, INSTANCE, name, items, num_notices=len(notices), **told))
    return features


def _declared(case: RenderCase, notices: list[str]) -> Callable[[str], Collection[str]]:
    asked: list[str] = []

    def ask(modality: str) -> Collection[str]:
        asked.append(modality)
        if case.fails_at is not None and len(asked) > case.fails_at:
            raise RuntimeError("the family's processor failed")
        return case.declared.get(modality, []) if case.fails_at is None else []

    return DeclaredFields(ask, notices.append)


def _tables(features: Mapping[str, Any], protocol: ProtocolUnderTest) -> dict[str, Any]:
    def table(name: str) -> dict[str, Any] | None:
        found = features.get(name)
        if found is None:
            return None
        return {
            modality: [None if blob is None else _slot(protocol.decode(blob)) for blob in blobs]
            for modality, blobs in found.items()
        }

    return {
        "mm_hashes": features["mm_hashes"],
        "mm_placeholders": {
            modality: [_span(PlaceholderRange(**_as_range(one))) for one in spans]
            for modality, spans in features["mm_placeholders"].items()
        },
        "kwargs_data": table("kwargs_data"),
        "mm_metadata": table("mm_metadata"),
    }


def _as_range(span: Mapping[str, Any]) -> dict[str, Any]:
    mask = span.get("is_embed")
    return {"offset": span["offset"], "length": span["length"], "is_embed": None if mask is None else bytes(mask)}


def _rejected(case: RenderCase, features: Mapping[str, Any], protocol: ProtocolUnderTest) -> str:
    """Why a receiver does not take the tables; empty when it does."""
    tokens = [1] * max(1, sum(one.gap + one.length for one in case.items) + case.tail)
    offers = {one.mm_hash: {"item_indices": [0]} for one in case.items}
    body = {"token_ids": tokens, "sampling_params": {"max_tokens": 1}, "features": features}
    light = {key: value for key, value in features.items() if key != "kwargs_data"}
    for sent in (body, {**body, "features": light, "ec_transfer_params": offers}):
        try:
            protocol.validate(sent)
        except Exception as error:  # noqa: BLE001 - as above
            return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def _merge(
    protocol: ProtocolUnderTest,
    features: Mapping[str, Any],
    rendered: Mapping[int, RenderedItem],
    name: str,
    sink: Sink,
) -> None:
    is_light = "kwargs_data" not in features
    try:
        merged = protocol.merge(features)
    except Exception as error:  # noqa: BLE001 - as above
        sink(ItemsMerged(0, INSTANCE, name, [], is_light, _reason(error)))
        return
    items = [
        MergedItem(one.modality, one.mm_hash, _span(one.position), _slot(one.data), rendered.get(one.position.offset))
        for one in merged
    ]
    sink(ItemsMerged(0, INSTANCE, name, items, is_light))


_PAYLOAD = CaseItem(
    "image", "", fields=[CaseField("pixel_values", fill=1), CaseField("image_grid_thw", keep_on_cpu=True)]
)


def _check(case: CheckCase, protocol: ProtocolUnderTest, sink: Sink) -> None:
    _judge(case.items, case.offers, protocol, sink, "c0", "")
    if case.order:
        _judge([case.items[place] for place in case.order], case.offers, protocol, sink, "c0/permuted", "permuted")
    if case.more_payload or case.more_offers:
        more = {"neither": "payload", "metadata": "both"}
        items = [
            (modality, mm_hash, more.get(state, state) if index in case.more_payload else state)
            for index, (modality, mm_hash, state) in enumerate(case.items)
        ]
        offers = {**(case.offers or {}), **dict.fromkeys(case.more_offers, True)} if case.more_offers else case.offers
        _judge(items, offers, protocol, sink, "c0/more", "given more")


def _judge(
    items: Sequence[tuple[str, str, str]],
    offers: Mapping[str, bool] | None,
    protocol: ProtocolUnderTest,
    sink: Sink,
    name: str,
    variant: str,
) -> None:
    """One request, judged."""
    checked: list[CheckedItem] = []
    counts: dict[str, int] = {}
    for modality, mm_hash, state in items:
        index = counts[modality] = counts.get(modality, -1) + 1
        checked.append(CheckedItem(modality, index, mm_hash, state))
    reason, is_client_error = "", True
    try:
        protocol.validate(_body(items, offers, protocol))
    except InputError as error:
        reason = str(error) or "refused"
    except Exception as error:  # noqa: BLE001 - as above
        reason, is_client_error = _reason(error), False
    sink(
        RequestChecked(
            0,
            INSTANCE,
            name,
            checked,
            sorted(one for one, has_descriptor in (offers or {}).items() if has_descriptor),
            bool(offers),
            not reason,
            reason,
            is_client_error,
            "c0" if variant else "",
            variant,
        )
    )


def _body(
    items: Sequence[tuple[str, str, str]], offers: Mapping[str, bool] | None, protocol: ProtocolUnderTest
) -> dict[str, Any]:
    hashes: dict[str, list[str]] = {}
    placeholders: dict[str, list[Any]] = {}
    payload: dict[str, list[str | None]] = {}
    metadata: dict[str, list[str | None]] = {}
    full = _PAYLOAD.item()
    assert full is not None
    blob, light = protocol.encode(full), protocol.encode(full.subset())
    for index, (modality, mm_hash, state) in enumerate(items):
        hashes.setdefault(modality, []).append(mm_hash)
        placeholders.setdefault(modality, []).append({"offset": 2 * index, "length": 1})
        payload.setdefault(modality, []).append(blob if state in ("payload", "both") else None)
        metadata.setdefault(modality, []).append(light if state in ("metadata", "both") else None)
    features: dict[str, Any] = {"mm_hashes": hashes, "mm_placeholders": placeholders}
    tables = {"kwargs_data": payload, "mm_metadata": metadata}
    features |= {key: table for key, table in tables.items() if any(any(slots) for slots in table.values())}
    body: dict[str, Any] = {"token_ids": [1] * (2 * len(items) + 1), "sampling_params": {"max_tokens": 1}}
    if items:
        body["features"] = features
    if offers is not None:
        body["ec_transfer_params"] = {one: {"item_indices": [0]} if has else None for one, has in offers.items()}
    return body


def _strip(case: StripCase, protocol: ProtocolUnderTest, sink: Sink) -> None:
    features = features_to_strip(case)
    before = [_stripped(one) for one in features]
    kept = list(features)
    answer = protocol.strip(features, case.num_computed_tokens, reads_fields=case.reads_position_fields)
    sink(
        FeaturesStripped(
            0,
            INSTANCE,
            case.num_computed_tokens,
            case.reads_position_fields,
            before,
            [_stripped(one) for one in answer],
            answer is features,
            [after is one for after, one in zip(answer, kept, strict=True)],
            before == [_stripped(one) for one in features],
        )
    )


def _stripped(one: MediaFeature) -> StrippedItem:
    fields = None if one.data is None else list(one.data.fields)
    keep = [] if one.data is None else [name for name, field in one.data.fields.items() if field.keep_on_cpu]
    return StrippedItem(one.identifier, _span(one.position), fields, keep)


def _play(case: EngineCase, _engine: object, system: SystemUnderTest, sink: Sink) -> None:
    tell_play(case.workload, system.play, system.title, sink, sessions=system.sessions)


def _mirror(case: MirrorCase, caches: CachesUnderTest, sink: Sink) -> None:
    play_mirror(case, caches.mirror(case.capacity_bytes), sink)


def _ring(case: RingCase, caches: CachesUnderTest, sink: Sink) -> None:
    play_ring(case, caches.ring(case.size_bytes, case.max_object_bytes, case.num_readers), sink)


def _plainly(ask: Callable[[Any, Any, Sink], None]) -> Callable[[Any, Any, SystemUnderTest, Sink], None]:
    """Of what is asked of a part of a system alone."""
    return lambda case, asked, _system, sink: ask(case, asked, sink)


_NO_PROTOCOL = "has no functions of the protocol"
_WAYS: Mapping[type, tuple[str, str, Callable[[Any, Any, SystemUnderTest, Sink], None]]] = {
    EngineCase: ("engine", "has no engine", _play),
    PositionCase: ("positions", "computes no positions", _plainly(ask_positions)),
    FamilyCase: ("media", "has no media", _plainly(weigh)),
    BroadcastCase: ("broadcast", "sends nothing to ranks", _plainly(broadcast)),
    HashCase: ("identity", "computes no hashes", _plainly(ask_hashes)),
    KeyCase: ("identity", "computes no block keys", _plainly(ask_keys)),
    MirrorCase: ("caches", "has no media caches", _plainly(_mirror)),
    RingCase: ("caches", "has no media caches", _plainly(_ring)),
    RenderCase: ("protocol", _NO_PROTOCOL, _plainly(_render)),
    CheckCase: ("protocol", _NO_PROTOCOL, _plainly(_check)),
    StripCase: ("protocol", _NO_PROTOCOL, _plainly(_strip)),
}
"""By kind of case: the part of a system that it is put to, what a system without that lacks, and how it is put."""
