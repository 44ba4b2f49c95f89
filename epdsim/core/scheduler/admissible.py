"""What is refused at the door, because no schedule could ever finish it (LIVE-ADMIT).

The model's scheduler refuses it whatever the dialect, since a run must not stand still. What a release refuses, whose scheduler
takes everything that its front end lets in, is the rule `scheduler.door`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.rules import Rule
from epdsim.core.scheduler.encoder_decoder import check_encoder_decoder
from epdsim.core.scheduler.engine import EngineState
from epdsim.core.scheduler.state import RequestState, Status


def check_request(engine: EngineState, request: Request, embeds: Sequence[int]) -> None:
    """Refuse a request.

    Args:
        engine: Where it is to run.
        request: As it came.
        embeds: Encoder-cache slots of its items.

    Raises:
        InputError: It cannot be finished.
    """
    name = f"request {request.request_id!r}"
    if request.prompt.num_tokens < 1 or request.max_tokens < 1:
        raise InputError(name, "it needs at least one prompt token and one output token")
    transfer = request.kv_transfer
    if engine.transfers is None and (transfer.loads_async or transfer.sends or transfer.num_unready):
        raise InputError(f"{name} with a KV transfer", "the engine has no KV connector", "set kv_role")
    _check_tokens(engine, name, request.prompt.num_tokens + request.max_tokens)
    if transfer.loads_async and transfer.num_loads:
        _check_load(engine, name, min(request.num_remote_tokens, request.prompt.num_tokens))
    _check_items(engine, name, request.mm_features, embeds)
    if engine.config.is_encoder_decoder:
        check_encoder_decoder(engine, request, embeds)


def check_lengths(engine: EngineState, request: Request, embeds: Sequence[int]) -> None:
    """Refuse what the front end of a release does: vLLM 0.25 to 0.33 look at the prompt's length and at the size of items alone.

    An answer that would run over `max_model_len` is cut there.

    Args:
        engine: As for `check_request`.
        request: As for it.
        embeds: As for it.

    Raises:
        InputError: The prompt is empty or leaves no token to generate, or an item is larger than the encoder cache.
    """
    name, config = f"request {request.request_id!r}", engine.config
    if request.prompt.num_tokens < 1:
        raise InputError(name, "its prompt is empty")
    if request.prompt.num_tokens >= config.max_model_len:
        raise InputError(
            f"{name} of {request.prompt.num_tokens} prompt tokens", f"max_model_len is {config.max_model_len}"
        )
    if embeds and max(embeds) > config.encoder_cache_size:
        raise InputError(
            f"{name} with an item of {max(embeds)} embeddings",
            f"the encoder cache has room for {config.encoder_cache_size}",
        )


DOOR: Rule[Callable[[EngineState, Request, Sequence[int]], None]] = Rule(
    "scheduler.door",
    "A request is refused when no schedule can finish it, and only then.",
    source="LIVE-ADMIT; vLLM issues 25890, 42489",
    ideal=check_request,
)


def check_update(engine: EngineState, state: RequestState, update: StreamingUpdate) -> None:
    """Refuse an input of a session; turns under way and before it count as if they took all the output they may.

    Raises:
        InputError: The request takes no input, or the session could not be finished with this one.
    """
    name = f"session {update.request_id!r}"
    if state.updates is None or (state.updates and state.updates[-1] is None):
        raise InputError(
            f"request {update.request_id!r}", "it takes no further input", "add it as resumable, close it last"
        )
    if update.prompt.num_tokens < 1 or update.max_tokens < 1:
        raise InputError(name, "an input needs at least one token and one output token")
    if type(update.prompt) is not type(state.request.prompt):
        raise InputError(name, "the inputs of a session are all token ids or all runs")
    earlier = [one for one in state.updates if one is not None]
    num_tokens = state.num_tokens if state.status is Status.STREAMING else state.asked_tokens
    num_tokens += sum(one.prompt.num_tokens + one.max_tokens for one in (*earlier, update))
    _check_tokens(engine, name, num_tokens)
    embeds = [engine.behaviour.item_slots(feature.position) for feature in update.mm_features]
    _check_items(engine, name, update.mm_features, embeds)


def _check_tokens(engine: EngineState, name: str, num_tokens: int) -> None:
    config = engine.config
    if num_tokens > config.max_model_len:
        raise InputError(
            f"{name} of {num_tokens} tokens",
            f"max_model_len is {config.max_model_len}",
            "raise it or shorten the request",
        )
    if engine.blocks_for(engine.most_slots(num_tokens - 1)) > config.num_gpu_blocks - 1:
        raise InputError(
            f"{name} of {num_tokens} tokens",
            f"the pool has {config.num_gpu_blocks - 1} blocks of {config.block_size} tokens",
            "raise num_gpu_blocks",
        )


def _check_load(engine: EngineState, name: str, num_tokens: int) -> None:
    """A load between steps begins only where it leaves blocks for the drafts of the step that follows."""
    config, num_slots = engine.config, engine.drafter.num_step_slots
    if num_tokens and engine.blocks_for(num_tokens) + engine.blocks_for(num_slots) > config.num_gpu_blocks - 1:
        raise InputError(
            f"{name} that loads {num_tokens} tokens",
            f"the pool has {config.num_gpu_blocks - 1} blocks of {config.block_size} tokens, and drafts take some of them",
            "raise num_gpu_blocks",
        )


def _check_items(engine: EngineState, name: str, features: Sequence[MediaFeature], embeds: Sequence[int]) -> None:
    config = engine.config
    room = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    if embeds and max(embeds) > room:
        raise InputError(
            f"{name} with an item of {max(embeds)} embeddings",
            f"encoder cache and encoder budget allow {room}",
            "raise encoder_cache_size and max_num_encoder_input_tokens",
        )
    if config.disable_chunked_mm_input and not config.is_encoder_decoder:
        _check_whole_items(engine, name, features)


def _check_whole_items(engine: EngineState, name: str, features: Sequence[MediaFeature]) -> None:
    config = engine.config
    # Two requests of which each waits to be alone would wait for ever: the threshold counts as if it always bound.
    room, size = config.max_num_batched_tokens - engine.drafter.num_slots, config.block_size
    if config.long_prefill_token_threshold:
        room = min(room, config.long_prefill_token_threshold)
    for feature in features:
        start, end = feature.position.offset, feature.position.end
        if engine.behaviour.splits_item(start, start + room, feature.position):
            raise InputError(
                f"{name} with an item of {feature.position.length} tokens",
                f"items are not split and a step computes {room} of a request",
                "raise max_num_batched_tokens, or long_prefill_token_threshold if it is less",
            )
        if config.mamba_block_aligned_split and start // size < (end - 1) // size:
            raise InputError(
                f"{name} with an item at tokens {start} to {end}",
                f"items are not split, and chunks end at blocks of {size}",
                "turn disable_chunked_mm_input or mamba_block_aligned_split off",
            )
