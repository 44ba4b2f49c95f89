"""Chunks that end at block boundaries, for hybrid models whose state can only be cached there."""

from __future__ import annotations

from epdsim.core.rules import Rule
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.state import RequestState


def aligned_chunk(config: SchedulerConfig, state: RequestState, start: int, num_tokens: int) -> int:
    """Tokens of a chunk that starts at `start`, cut so that it ends where the model's state is to be cached.

    A chunk inside the prompt ends at a block boundary; one that starts off a boundary (an encoder input stopped the one before)
    ends at the next; none runs past the last boundary that a later hit can use. Blocks that no step can hold, beside the drafter's
    own slots, are computed in parts. Output that is computed again after a preemption counts as prompt.
    """
    return _cut(config, state, start, num_tokens, config.max_num_batched_tokens - config.drafter.num_slots)


def aligned_to_batch(config: SchedulerConfig, state: RequestState, start: int, num_tokens: int) -> int:
    """The same, but that a block counts as one that a step can hold though it cannot beside the drafter's slots: vLLM 0.32.

    A prompt of such blocks is never begun.
    """
    return _cut(config, state, start, num_tokens, config.max_num_batched_tokens)


def _cut(config: SchedulerConfig, state: RequestState, start: int, num_tokens: int, most: int) -> int:
    """The chunk, where a step can hold `most` tokens of a request."""
    prefill_end = max(state.num_prompt + state.num_forgotten, state.num_tokens - 1)
    if start >= prefill_end:
        return num_tokens
    size, end = config.block_size, start + num_tokens
    if end < prefill_end:
        if config.long_prefill_token_threshold:
            most = min(most, config.long_prefill_token_threshold)
        boundary = end - end % size
        if boundary > start or size <= most:
            end = boundary
    # A hit leaves a token to compute; the block that a drafter drops leaves more than one.
    last_useful = state.num_tokens // size - 1 if config.drafter.drops_block else (state.num_tokens - 1) // size
    stops = [last_useful * size]
    if start % size:
        stops.append(start - start % size + size)
    return max(0, min((stop for stop in stops if start < stop < end), default=end) - start)


ALIGNED_CHUNK = Rule(
    "scheduler.aligned_chunk",
    "With block-aligned chunks a part of a prompt ends at a block boundary, and before encoder inputs may shorten it.",
    source="vLLM PR 30877 and PR 51603",
    ideal=aligned_chunk,
)
