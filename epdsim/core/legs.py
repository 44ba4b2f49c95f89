"""The legs of one request: what an orchestrator sends to encode, prefill and decode, and what each weighs.

Encode gets the full payload of an item and as little prompt as possible; prefill gets metadata and the EC descriptors (or full
payloads, or the raw media to process itself); decode gets the KV parameters of prefill verbatim and no pixels. A leg is data: its
JSON body comes from `leg_body` with blobs of the caller's making, its size from `leg_bytes` with their sizes alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Any, Literal, cast

from epdsim.core.ec.gate import gate_items, offered_hashes
from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem, PlaceholderRange
from epdsim.core.prompt import Prompt, RunPrompt, TokenPrompt, TokenRun
from epdsim.core.records import record
from epdsim.core.slots import FeatureTables, Table

PrefillMode = Literal["metadata", "full", "deferred"]

KV_WISH: Mapping[str, Any] = MappingProxyType(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)
"""What prefill is asked for where decode pulls its KV cache (NIXL)."""

TOKEN_CHARS = 7
"""One token id in JSON where only its number is known: up to six digits and a comma."""


@record
class RawMedia:
    """One part of `content_parts`: media that the worker fetches and processes itself (vLLM issue 46722).

    Attributes:
        modality: `"image"`, `"video"` or `"audio"`.
        uuid: The item's identity; None leaves it to the worker.
        url: A `data:` or `http:` address; empty when only its size matters.
        url_chars: Length of the address where it is not held.
    """

    modality: str
    uuid: str | None = None
    url: str = ""
    url_chars: int = 0


@record
class Leg:
    """One call of an engine (vLLM's `GenerateRequest`).

    Attributes:
        stage: `"encode"`, `"prefill"` or `"decode"`.
        request_id: Of the call.
        prompt: Its tokens.
        sampling_params: As sent.
        tables: Its media, or None.
        content_parts: Raw media in place of tables.
        ec_transfer_params: Top-level EC parameters.
        kv_transfer_params: Top-level KV parameters.
        stream: Whether the answer is streamed; only decode's may be, since chunks carry no parameters on.
    """

    stage: Literal["encode", "prefill", "decode"]
    request_id: str
    prompt: Prompt
    sampling_params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: FeatureTables[MediaItem] | None = None
    content_parts: Sequence[RawMedia] = ()
    ec_transfer_params: Mapping[str, Any] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    stream: bool = False


@record
class LegBytes:
    """What a body weighs, in bytes of JSON without white space.

    Attributes:
        payload: Blobs of `kwargs_data`.
        metadata: Blobs of `mm_metadata`.
        media: Addresses of raw media.
        tokens: The token ids with their commas.
        envelope: All else: names, hashes, placeholders, parameters.
    """

    payload: int
    metadata: int
    media: int
    tokens: int
    envelope: int

    @property
    def total(self) -> int:
        """The whole body."""
        return self.payload + self.metadata + self.media + self.tokens + self.envelope


def encode_legs(
    request_id: str, prompt: Prompt, tables: FeatureTables[MediaItem] | None, *, batched: bool = False
) -> tuple[Leg, ...]:
    """The encode calls of a request: one per distinct item, or one for all of them.

    The prompt is cut to its first token (unless a placeholder begins there) and the placeholders, whose offsets are rebased. An
    item that occurs again is encoded once. A null payload goes as null: the encoder's cache must hold that item.

    Args:
        request_id: Of the whole request; the calls are `<id>-enc-<i>`.
        prompt: Of the whole request.
        tables: Its media; None gives no calls.
        batched: One call for all items.
    """
    if tables is None:
        return ()
    seen: set[str] = set()
    distinct: list[tuple[str, int]] = []
    for modality, i in tables.positions():
        if tables.mm_hashes[modality][i] not in seen:
            seen.add(tables.mm_hashes[modality][i])
            distinct.append((modality, i))
    groups = [distinct] if batched else [[one] for one in distinct]
    starts_with_media = any(one.offset == 0 for ranges in tables.mm_placeholders.values() for one in ranges)
    spans = [] if starts_with_media else [(0, 1)]
    return tuple(
        _encode_leg(f"{request_id}-enc-{k}", prompt, tables, group, spans) for k, group in enumerate(groups) if group
    )


def _encode_leg(
    request_id: str,
    prompt: Prompt,
    tables: FeatureTables[MediaItem],
    group: Sequence[tuple[str, int]],
    before: Sequence[tuple[int, int]],
) -> Leg:
    spans = list(before)
    hashes: dict[str, list[str]] = {}
    placeholders: dict[str, list[PlaceholderRange]] = {}
    payload: dict[str, list[MediaItem | None]] = {}
    offset = len(spans)
    for modality, i in group:
        span = tables.mm_placeholders[modality][i]
        spans.append((span.offset, span.end))
        hashes.setdefault(modality, []).append(tables.mm_hashes[modality][i])
        placeholders.setdefault(modality, []).append(PlaceholderRange(offset, span.length, span.is_embed))
        payload.setdefault(modality, []).append(tables.payload(modality, i))
        offset += span.length
    return Leg(
        "encode", request_id, _cut(prompt, spans), {"max_tokens": 1}, FeatureTables(hashes, placeholders, payload)
    )


def prefill_leg(
    request_id: str,
    prompt: Prompt,
    tables: FeatureTables[MediaItem] | None,
    *,
    mode: PrefillMode = "metadata",
    ec_transfer_params: Mapping[str, Any] | None = None,
    kv_transfer_params: Mapping[str, Any] | None = KV_WISH,
    sampling_params: Mapping[str, Any] = MappingProxyType({}),
    media: Sequence[RawMedia] = (),
) -> Leg:
    """The prefill call: one token, never streamed, with what conflicts with one token taken out.

    Args:
        request_id: Of the whole request; the call is `<id>-p`.
        prompt: Of the whole request, placeholders expanded.
        tables: Its media, or None.
        mode: `"metadata"` drops the payload of every item whose hash the EC parameters offer, item by item: one that the encoder
            did not answer for keeps its payload (llm-d-router PR 2723). `"full"` sends all. `"deferred"` sends the raw `media`
            and a prompt whose placeholders are collapsed to one token each: the worker expands them.
        ec_transfer_params: From the encode calls, merged.
        kv_transfer_params: What is asked of prefill; None where it also decodes.
        sampling_params: The client's.
        media: The raw media, for `"deferred"`.

    Raises:
        InputError: Unknown mode, or media missing for `"deferred"`.
    """
    sampling = {key: value for key, value in sampling_params.items() if key not in ("min_tokens", "n")}
    parts: Sequence[RawMedia] = ()
    ec: Mapping[str, Any] | None = None
    if tables is not None and mode == "metadata":
        tables, ec = _metadata_only(tables, ec_transfer_params), ec_transfer_params
    elif tables is not None and mode == "deferred":
        prompt, tables, parts = _collapsed(prompt, tables, media), None, media
    elif tables is not None and mode != "full":
        raise InputError(f"mode {mode!r} of a prefill leg", "no such mode", "use metadata, full or deferred")
    sampling["max_tokens"] = 1
    return Leg("prefill", f"{request_id}-p", prompt, sampling, tables, parts, ec, kv_transfer_params)


def _collapsed(prompt: Prompt, tables: FeatureTables[MediaItem], media: Sequence[RawMedia]) -> Prompt:
    """A prompt with one token for each item, whose raw media go along."""
    spans = [tables.mm_placeholders[modality][i] for modality, i in tables.positions()]
    if len(media) != len(spans):
        raise InputError(f"{len(media)} raw media", f"the prompt has {len(spans)} items", "give one part per item")
    starts = [0, *(one.end for one in spans)]
    ends = [*(one.offset + 1 for one in spans), prompt.num_tokens]
    return _cut(prompt, list(zip(starts, ends, strict=True)))


def _metadata_only(
    tables: FeatureTables[MediaItem], ec_transfer_params: Mapping[str, Any] | None
) -> FeatureTables[MediaItem]:
    offered = offered_hashes(gate_items(tables), ec_transfer_params)
    payload = {
        modality: [None if one in offered else tables.payload(modality, i) for i, one in enumerate(hashes)]
        for modality, hashes in tables.mm_hashes.items()
    }
    is_bare = all(slot is None for slots in payload.values() for slot in slots)
    return FeatureTables(tables.mm_hashes, tables.mm_placeholders, None if is_bare else payload, tables.mm_metadata)


def decode_leg(
    request_id: str,
    prompt: Prompt,
    tables: FeatureTables[MediaItem] | None,
    *,
    kv_transfer_params: Mapping[str, Any] | None,
    sampling_params: Mapping[str, Any] = MappingProxyType({}),
    stream: bool = False,
) -> Leg:
    """The decode call: KV parameters of prefill verbatim, the client's sampling, hashes and placeholders; no pixels, no EC."""
    identity = tables and FeatureTables(tables.mm_hashes, tables.mm_placeholders)
    return Leg(
        "decode", request_id, prompt, sampling_params, identity, kv_transfer_params=kv_transfer_params, stream=stream
    )


def _cut(prompt: Prompt, spans: Sequence[tuple[int, int]]) -> Prompt:
    """The tokens of some spans, one after the other."""
    parts = chain.from_iterable(
        cast("tuple[Any, ...]", prompt.slice_key(start, end)) for start, end in spans if start < end
    )
    if isinstance(prompt, TokenPrompt):
        return TokenPrompt(cast("list[int]", list(parts)))
    assert isinstance(prompt, RunPrompt), "a prompt is of tokens or of runs"
    return RunPrompt(cast("list[TokenRun]", list(parts)))


def leg_body(leg: Leg, blob: Callable[[MediaItem, str], str]) -> dict[str, Any]:
    """The JSON body of a leg; absent is what is None.

    Args:
        leg: With a prompt of token ids; a prompt of runs gives an empty list of them.
        blob: The base64 blob of an item, given the place where it goes (`epdsim.wire.encode_blob`).
    """
    features = None if leg.tables is None else features_body(leg.tables.convert(blob))
    return _body(leg, _token_ids(leg), features, [_part_body(one, one.url) for one in leg.content_parts])


def _body(
    leg: Leg, token_ids: Sequence[int], features: Mapping[str, Any] | None, parts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "request_id": leg.request_id,
        "token_ids": token_ids,
        "features": features,
        "content_parts": parts or None,
        "ec_transfer_params": None if leg.ec_transfer_params is None else dict(leg.ec_transfer_params),
        "kv_transfer_params": None if leg.kv_transfer_params is None else dict(leg.kv_transfer_params),
        "sampling_params": dict(leg.sampling_params),
        "stream": leg.stream,
    }
    return {key: value for key, value in body.items() if value is not None}


def _token_ids(leg: Leg) -> list[int]:
    return list(leg.prompt.token_ids) if isinstance(leg.prompt, TokenPrompt) else []


def features_body(tables: FeatureTables[str]) -> dict[str, Any]:
    """Tables of blobs as the JSON object `features`; null slots stay, absent tables are left out."""
    body: dict[str, Any] = {
        "mm_hashes": {modality: list(hashes) for modality, hashes in tables.mm_hashes.items()},
        "mm_placeholders": {
            modality: [_placeholder_body(one) for one in ranges] for modality, ranges in tables.mm_placeholders.items()
        },
    }
    for name, table in (("kwargs_data", tables.kwargs_data), ("mm_metadata", tables.mm_metadata)):
        if table is not None:
            body[name] = {modality: list(slots) for modality, slots in table.items()}
    return body


def _placeholder_body(one: PlaceholderRange) -> dict[str, Any]:
    mask = {} if one.is_embed is None else {"is_embed": [bool(bit) for bit in one.is_embed]}
    return {"offset": one.offset, "length": one.length, **mask}


def _part_body(one: RawMedia, url: str) -> dict[str, Any]:
    return {"type": f"{one.modality}_url", "url": url, "uuid": one.uuid}


_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def json_bytes(value: object) -> int:
    """Bytes of a JSON text without white space."""
    return len(_COMPACT.encode(value).encode())


def leg_bytes(
    leg: Leg, blob_chars: Callable[[MediaItem], int], text_bytes: Callable[[object], int] = json_bytes
) -> LegBytes:
    """What the body of a leg weighs, without making its blobs.

    Args:
        leg: Any leg; for a prompt of runs token ids are counted with `TOKEN_CHARS` each.
        blob_chars: Characters of an item's blob (`epdsim.wire.blob_size`).
        text_bytes: Another that says what `json_bytes` does.

    Returns:
        The parts; for a prompt of token ids and held addresses their total is the exact length of the JSON text.
    """
    tables, media, token_ids = leg.tables, leg.content_parts, _token_ids(leg)
    payload = metadata = 0
    features: Mapping[str, Any] | None = None
    if tables is not None:
        payload, metadata = _chars(tables.kwargs_data, blob_chars), _chars(tables.mm_metadata, blob_chars)
        slots = _emptied(tables.kwargs_data), _emptied(tables.mm_metadata)
        features = features_body(FeatureTables(tables.mm_hashes, tables.mm_placeholders, *slots))
    return LegBytes(
        payload=payload,
        metadata=metadata,
        media=sum([len(one.url.encode()) or one.url_chars for one in media]),
        tokens=text_bytes(token_ids) - 2 if token_ids else max(TOKEN_CHARS * leg.prompt.num_tokens - 1, 0),
        envelope=text_bytes(_body(leg, [], features, [_part_body(one, "") for one in media])),
    )


def _chars(table: Table[MediaItem] | None, blob_chars: Callable[[MediaItem], int]) -> int:
    """Characters of all blobs of a table."""
    return sum([blob_chars(slot) for slots in (table or {}).values() for slot in slots if slot is not None])


def _emptied(table: Table[MediaItem] | None) -> Table[str] | None:
    """A table with blobs of no characters."""
    if table is None:
        return None
    return {modality: [None if slot is None else "" for slot in slots] for modality, slots in table.items()}


def json_chars(text: str) -> int:
    """Bytes of a string within a JSON text, quotes not counted."""
    return len(encode_basestring(text).encode()) - 2
