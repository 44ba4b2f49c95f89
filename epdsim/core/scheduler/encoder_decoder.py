"""Requests of encoder-decoder models: their items stand beside the prompt, not in it, and are read through cross attention.

All items are encoded with the first token. Their keys and values take KV blocks of their own, as many as the embeddings need, from
the first step of a request until it ends or is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.core.request import Request
from epdsim.core.scheduler.engine import EngineState
from epdsim.core.scheduler.state import RequestState


def read_across(engine: EngineState, state: RequestState) -> None:
    """Make a new request one whose items are due with its first token, and that needs blocks for them."""
    state.last_media_end = min(1, state.last_media_end)
    state.num_cross_blocks = engine.blocks_for(sum(state.media_embeds))


def check_encoder_decoder(engine: EngineState, request: Request, embeds: Sequence[int]) -> None:
    """See that some schedule can finish a request of an encoder-decoder model (LIVE-ADMIT).

    Args:
        engine: Where it shall run.
        request: Its own checks are over.
        embeds: Embeddings of each item.

    Raises:
        InputError: None can.
    """
    config, name = engine.config, f"request {request.request_id!r}"
    for feature in request.mm_features:
        if feature.position.offset:
            rule = "an encoder-decoder model has its items beside the prompt, at offset 0"
            raise InputError(f"{name} with an item at offset {feature.position.offset}", rule)
    num_known = request.prompt.num_tokens + request.max_tokens - 1
    most = config.max_num_batched_tokens - engine.drafter.num_slots
    if num_known > most:
        raise InputError(
            f"{name} of {num_known} tokens to compute",
            f"an encoder-decoder model computes them at once after a preemption and a step has {most}",
            "raise max_num_batched_tokens",
        )
    room = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    if sum(embeds) > room:
        raise InputError(
            f"{name} with items of {sum(embeds)} embeddings",
            f"they are encoded in one step, for which encoder cache and encoder budget allow {room}",
            "raise encoder_cache_size and max_num_encoder_input_tokens",
        )
    num_blocks = engine.blocks_for(engine.most_slots(num_known)) + engine.blocks_for(sum(embeds))
    if num_blocks > config.num_gpu_blocks - 1:
        raise InputError(
            f"{name} that needs {num_blocks} blocks, those for cross attention among them",
            f"the pool has {config.num_gpu_blocks - 1}",
            "raise num_gpu_blocks",
        )
