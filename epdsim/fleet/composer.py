"""The legs of a rendered request as this fleet's orchestrator composes them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from epdsim.core.legs import KV_WISH, Leg, PrefillMode, decode_leg, json_chars, leg_bytes, prefill_leg
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.fleet.render import RenderedRequest
from epdsim.media import RenderedMedia

PREFILL_PAYLOADS: tuple[PrefillMode, ...] = ("full", "metadata", "deferred")
"""What may stand for media on the way to prefill; see `prefill_leg`."""


def body_bytes(leg: Leg) -> int:
    """Length of a leg's JSON body."""
    from epdsim.wire.codec import blob_size  # noqa: PLC0415 - brings the whole room, which a run without media never needs

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
    return leg_bytes(leg, lambda _: 0).total


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
