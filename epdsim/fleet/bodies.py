"""What the HTTP bodies of a request's legs weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epdsim.media import RenderedMedia
from epdsim.wire.codec import blob_size

ENVELOPE_BYTES = 256
"""Names, braces, sampling parameters and ids of a GenerateRequest (the worked example of vLLM's wire is about this long)."""

TOKEN_BYTES = 7
"""One token id in JSON: up to six digits and a comma."""

ITEM_BYTES = 64 + 2 + 40
"""One item's 64 hex digits of hash in quotes, and its placeholder as an object."""

EC_ENTRY_BYTES = 240
"""One item's entry of `ec_transfer_params`: hash, indices, peer, size, shape (NIXL-like connector)."""

KV_ENTRY_BYTES = 320
"""`kv_transfer_params` of a hand-over, without its block ids."""


@dataclass(frozen=True, slots=True)
class ItemBytes:
    """One item as each kind of payload carries it, in bytes of JSON text.

    Attributes:
        full: The base64 blob of all fields.
        metadata: The blob of the light fields, 4 (`null`) when there are none.
        raw: The client's file in base64.
    """

    full: int
    metadata: int
    raw: int


def item_bytes(media: RenderedMedia, declared: frozenset[str], file_bytes: int) -> ItemBytes:
    """What an item weighs under each choice of payload.

    Args:
        media: The item as its family renders it.
        declared: Its family's placeholder-metadata fields.
        file_bytes: Size of the client's file.
    """
    light = media.item.subset(declared)
    return ItemBytes(
        blob_size(media.item), blob_size(light) if light.fields else len("null"), 4 * ((file_bytes + 2) // 3)
    )


def body_bytes(num_tokens: int, items: Sequence[ItemBytes], payload: str) -> int:
    """A leg's body: envelope, token ids, and per item hash, placeholder and what the payload asks for.

    Args:
        num_tokens: Tokens of the prompt that goes along.
        items: Its media.
        payload: `"full"`, `"metadata"` (with the EC handle of each item), `"raw"` or `"none"` (hashes only).
    """
    total = ENVELOPE_BYTES + TOKEN_BYTES * num_tokens + ITEM_BYTES * len(items)
    if payload == "full":
        return total + sum(item.full + item.metadata for item in items)
    if payload == "metadata":
        return total + sum(item.metadata + EC_ENTRY_BYTES for item in items)
    if payload == "raw":
        return total + sum(item.raw for item in items)
    return total
