"""The legs of a rendered request as this fleet's orchestrator composes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epdsim.core.legs import KV_WISH, Leg, PrefillMode, decode_leg, leg_bytes, prefill_leg
from epdsim.fleet.render import RenderedRequest
from epdsim.media import RenderedMedia
from epdsim.wire.codec import blob_size

PREFILL_PAYLOADS: tuple[PrefillMode, ...] = ("full", "metadata", "deferred")
"""What may stand for media on the way to prefill; see `prefill_leg`."""


def body_bytes(leg: Leg) -> int:
    """Length of a leg's JSON body."""
    return leg_bytes(leg, blob_size).total


def prefill_legs(rendered: RenderedRequest, *, hands_over: bool) -> Mapping[str, Leg]:
    """The call that computes the prompt under every choice of payload; `"none"` alone for a prompt without media.

    Args:
        rendered: The request.
        hands_over: Whether a decode instance will pull the KV cache.
    """
    wish = KV_WISH if hands_over else None
    request_id = rendered.source.request_id
    if rendered.tables is None:
        return {"none": prefill_leg(request_id, rendered.prompt, None, kv_transfer_params=wish)}
    ec = {mm_hash: ec_descriptor(media) for mm_hash, media in rendered.media.items()}
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


def decode_call(rendered: RenderedRequest, num_blocks: int) -> Leg:
    """The call that generates from a KV cache that another instance computed."""
    params = kv_descriptor(rendered.source.request_id, rendered.prompt.num_tokens, num_blocks)
    return decode_leg(
        rendered.source.request_id, rendered.prompt, rendered.tables, kv_transfer_params=params, stream=True
    )


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
