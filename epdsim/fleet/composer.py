"""The legs of a rendered request as this fleet's orchestrator composes them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from epdsim.core.items import MediaItem
from epdsim.core.legs import KV_WISH, Leg, decode_leg, encode_legs, json_chars, leg_bytes, prefill_leg
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.slots import FeatureTables
from epdsim.fleet.config import PREFILL_PAYLOADS

if TYPE_CHECKING:
    from epdsim.fleet.encode import EncodeItem
    from epdsim.fleet.render import RenderedRequest
    from epdsim.media import RenderedMedia

_ENCODER = msgspec.json.Encoder()


def body_bytes(leg: Leg) -> int:
    """Length of a leg's JSON body."""
    from epdsim.wire.codec import blob_size  # noqa: PLC0415 - brings the whole room, which a run without media never needs

    return leg_bytes(leg, blob_size, _json_bytes).total


def _json_bytes(value: object) -> int:
    """What `epdsim.core.legs.json_bytes` says of what legs consist of, in a tenth of the time."""
    return len(_ENCODER.encode(value))


def encode_calls(rendered: RenderedRequest) -> Mapping[str, Leg]:
    """By identifier, the call that has one item of a request encoded."""
    legs = encode_legs(rendered.source.request_id, rendered.prompt, rendered.tables)
    return dict(zip(rendered.media, legs, strict=True))


def shared_encode_call(rendered: RenderedRequest, mm_hashes: Sequence[str]) -> Leg:
    """The call that has several of them encoded, in order of first occurrence."""
    request_id, tables = rendered.source.request_id, rendered.tables
    assert tables is not None, "there are items"
    (leg,) = encode_legs(request_id, rendered.prompt, _only(tables, mm_hashes), batched=True)
    return replace(leg, request_id=f"{request_id}-enc-{list(rendered.media).index(mm_hashes[0])}")


def raw_encode_call(rendered: RenderedRequest, call: Leg, mm_hashes: Container[str]) -> Leg:
    """An encode call with the client's files in place of their tensors."""
    media = {item.mm_hash: item.raw for item in rendered.items if item.mm_hash in mm_hashes}
    return replace(call, tables=None, content_parts=list(media.values()))


def _only(tables: FeatureTables[MediaItem], mm_hashes: Container[str]) -> FeatureTables[MediaItem]:
    """The rows of some items."""
    places = {
        modality: [index for index, mm_hash in enumerate(hashes) if mm_hash in mm_hashes]
        for modality, hashes in tables.mm_hashes.items()
    }
    return FeatureTables(
        {modality: [tables.mm_hashes[modality][i] for i in rows] for modality, rows in places.items() if rows},
        {modality: [tables.mm_placeholders[modality][i] for i in rows] for modality, rows in places.items() if rows},
        {modality: [tables.payload(modality, i) for i in rows] for modality, rows in places.items() if rows},
    )


def prefill_legs(rendered: RenderedRequest, ec: Mapping[str, Any], *, hands_over: bool) -> Mapping[str, Leg]:
    """The call that computes the prompt under every choice of payload; `"none"` alone for a prompt without media.

    Args:
        rendered: The request.
        ec: `ec_transfer_params`; an item that they do not offer keeps its payload.
        hands_over: Whether a decode instance will take the KV cache over.
    """
    wish = KV_WISH if hands_over else None
    request_id = rendered.source.request_id
    if rendered.tables is None:
        return {"none": prefill_leg(request_id, rendered.prompt, None, kv_transfer_params=wish)}
    return {
        mode: prefill_leg(
            request_id,
            rendered.prompt,
            rendered.tables,
            mode=mode,
            ec_transfer_params=ec,
            kv_transfer_params=wish,
            media=[item.raw for item in rendered.items],
        )
        for mode in PREFILL_PAYLOADS
    }


def text_prefill_bytes(request_id: str, num_tokens: int, *, hands_over: bool) -> int:
    """Body bytes of the call that computes a prompt without media, the same as of its leg: only id and length make a difference."""
    return _text_prefill_bytes(num_tokens, hands_over=hands_over) + json_chars(request_id)


@lru_cache(maxsize=4096)
def _text_prefill_bytes(num_tokens: int, *, hands_over: bool) -> int:
    """With an id of no characters."""
    prompt = RunPrompt([TokenRun("", 0, num_tokens)])
    return _text_bytes(prefill_leg("", prompt, None, kv_transfer_params=KV_WISH if hands_over else None))


def _text_bytes(leg: Leg) -> int:
    """Length of a leg's body that has no blobs."""
    return leg_bytes(leg, lambda _: 0, _json_bytes).total


def text_decode_bytes(request_id: str, num_tokens: int, num_blocks: int) -> int:
    """The same of the call that generates; it names the request twice."""
    return _text_decode_bytes(num_tokens, num_blocks) + 2 * json_chars(request_id)


@lru_cache(maxsize=4096)
def _text_decode_bytes(num_tokens: int, num_blocks: int) -> int:
    """With an id of no characters."""
    params = kv_descriptor("", num_tokens, num_blocks)
    prompt = RunPrompt([TokenRun("", 0, num_tokens)])
    return _text_bytes(decode_leg("", prompt, None, kv_transfer_params=params, stream=True))


def decode_call(rendered: RenderedRequest, num_blocks: int) -> Leg:
    """The call that generates from a KV cache that another instance computed."""
    params = kv_descriptor(rendered.source.request_id, rendered.prompt.num_tokens, num_blocks)
    return decode_leg(
        rendered.source.request_id, rendered.prompt, rendered.tables, kv_transfer_params=params, stream=True
    )


def ec_params(rendered: RenderedRequest) -> dict[str, Any]:
    """`ec_transfer_params` for all items of a request."""
    return {mm_hash: ec_descriptor(media) for mm_hash, media in rendered.media.items()}


def ec_descriptor(media: RenderedMedia) -> dict[str, Any]:
    """One item's entry of `ec_transfer_params` as a NIXL-like producer gives it."""
    width = media.embedding_bytes // max(1, 2 * media.num_embeds)
    return {
        "item_indices": [0],
        "metadata": {},
        "peer_host": "10.0.0.1",
        "peer_port": 5601,
        "size_bytes": media.embedding_bytes,
        "shape": [media.num_embeds, width],
    }


def push_request(items: Sequence[EncodeItem], consumer: str) -> dict[str, Any]:
    """`ec_transfer_params` of an encode call whose embeddings are pushed (Mooncake)."""
    named = [{"transfer_id": item.transfer_id, "mm_hash": item.mm_hash} for item in items]
    return {"consumer_zmq": f"tcp://{consumer}:5602", "ec_items": named}


def push_offer(items: Sequence[EncodeItem]) -> dict[str, Any]:
    """`ec_transfer_params` of a prefill call whose embeddings were pushed."""
    return {"ec_items": [{"mm_hash": item.mm_hash, "transfer_id": item.transfer_id} for item in items]}


def kv_descriptor(request_id: str, num_tokens: int, num_blocks: int) -> dict[str, Any]:
    """`kv_transfer_params` as a prefill instance answers them (pull, NIXL)."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, num_blocks + 1))],
        "remote_engine_id": "engine",
        "remote_request_id": request_id,
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
        "remote_num_tokens": num_tokens,
        "transfer_mode": "pull",
    }
