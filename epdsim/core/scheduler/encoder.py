"""Which media items a chunk needs, and how far the chunk may go with the encoder budget and cache that are left."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from epdsim.core.items import PlaceholderRange
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.state import RequestState

OTHER_SIZE = "its item does not fit the entry of the same identifier in the encoder cache"
"""Why a request is refused by `encoder_cache.mismatch`."""


class EncoderChoice(NamedTuple):
    """What a chunk takes from the encoder.

    Attributes:
        num_tokens: Length of the chunk, cut before the first item that does not fit; 0 when nothing can be computed.
        inputs: Items to encode.
        loads: Items to load from the EC store.
        repeats: Further occurrences of items in `inputs` and `loads`.
        num_embeds: Embeddings to encode.
        num_left: What is left of the encoder budget after them, as it was when they were chosen.
    """

    num_tokens: int
    inputs: list[int]
    loads: list[int]
    repeats: list[int]
    num_embeds: int
    num_left: int


def choose_encoder_inputs(
    engine: EngineState, draft: StepDraft, state: RequestState, start: int, num_tokens: int
) -> EncoderChoice:
    """Choose the encoder inputs of the chunk `[start, start + num_tokens)`.

    A drafter that reads ahead needs those of the tokens behind the chunk too, and a chunk is cut so that it does not read an item
    that cannot be encoded. Entries that are cached are held at once. Room for the others is made here, which evicts entries that
    nobody holds, but it is taken by `take_encoder_inputs` only, once the chunk has its KV blocks.
    """
    if engine.config.is_encoder_decoder:
        return _choose_all(engine, draft, state, num_tokens)
    features, cache, behaviour = state.features, engine.encoder_cache, engine.behaviour
    entries = cache.entries
    whole_items, ec = engine.config.disable_chunked_mm_input, engine.ec
    end = start + num_tokens
    window_end = behaviour.drafter_window(end, engine.drafter.num_prefill_lookahead)
    inputs: list[int] = []
    loads: list[int] = []
    repeats: list[int] = []
    chosen: dict[str, int] = {}
    num_encoded = num_held = 0
    for index in range(bisect_right(state.media_ends, start), bisect_left(state.media_starts, window_end)):
        identifier, position, num_embeds = (
            features[index].identifier,
            features[index].position,
            state.media_embeds[index],
        )
        is_split = whole_items and behaviour.splits_item(start, end, position)
        if is_split and behaviour.guards_first:
            num_tokens = _cut_before(engine, state, index, start, num_tokens)
            break
        known = chosen.get(identifier, entries.get(identifier))
        if known is not None and behaviour.differs(known, num_embeds):
            return refuse(engine, draft, state, OTHER_SIZE)
        if identifier in chosen:
            if behaviour.holds_repeats:
                repeats.append(index)
            continue
        if cache.reference(state.request_id, features, index):
            continue
        if is_split or num_embeds > draft.encoder_embeds - num_encoded or not cache.make_room(num_held + num_embeds):
            num_tokens = _cut_before(engine, state, index, start, num_tokens)
            break
        if not _embeds_in(position, start, window_end):
            continue
        chosen[identifier] = num_embeds
        num_held += num_embeds
        if ec is not None and ec.holds(state.request, index):
            loads.append(index)
        elif ec is not None and not behaviour.encodable(features[index]):
            reason = f"no embedding of {identifier!r} is at hand, and it came with nothing to encode"
            return refuse(engine, draft, state, reason)
        else:
            inputs.append(index)
            num_encoded += num_embeds
    return EncoderChoice(num_tokens, inputs, loads, repeats, num_encoded, draft.encoder_embeds - num_encoded)


def refuse(engine: EngineState, draft: StepDraft, state: RequestState, reason: str) -> EncoderChoice:
    """Nothing for a request that is to fail with the update of this step."""
    engine.refused.setdefault(state.request_id, reason)
    return EncoderChoice(0, [], [], [], 0, draft.encoder_embeds)


def take_encoder_inputs(engine: EngineState, draft: StepDraft, state: RequestState, choice: EncoderChoice) -> None:
    """Take what a choice made room for."""
    features, cache = state.features, engine.encoder_cache
    if choice.inputs:
        draft.encoder_inputs[state.request_id] = choice.inputs
        draft.encoder_embeds = engine.behaviour.encoder_left(draft.encoder_embeds - choice.num_embeds, choice.num_left)
    for index in choice.inputs + choice.loads:
        cache.allocate(state.request_id, features, index, state.media_embeds[index])
        if engine.ec is not None:
            engine.ec.allocated(state.request, index)
    for index in choice.repeats:
        cache.reference(state.request_id, features, index)


def _choose_all(engine: EngineState, draft: StepDraft, state: RequestState, num_tokens: int) -> EncoderChoice:
    """The same for an encoder-decoder model, whose first token reads all items."""
    num_embeds, budget = sum(state.media_embeds), draft.encoder_embeds
    if num_embeds > budget or not engine.encoder_cache.make_room(num_embeds):
        return EncoderChoice(0, [], [], [], 0, budget)
    return EncoderChoice(num_tokens, list(range(len(state.media_embeds))), [], [], num_embeds, budget - num_embeds)


def _cut_before(engine: EngineState, state: RequestState, index: int, start: int, num_tokens: int) -> int:
    """Length of a chunk that stays clear of item `index`."""
    num_left = state.media_starts[index] - start
    num_whole = state.media_ends[index - 1] - start if index and engine.config.disable_chunked_mm_input else 0
    return engine.behaviour.cut_before(num_left, num_tokens, engine.drafter.num_prefill_lookahead, num_whole)


def leave_ahead(engine: EngineState, state: RequestState, start: int, num_tokens: int) -> int:
    """Length of the chunk `[start, start + num_tokens)` once it leaves what a drafter of several modules reads with it."""
    end, num_whole = start + num_tokens, 0
    if engine.config.disable_chunked_mm_input and (index := bisect_left(state.media_starts, end)):
        num_whole = state.media_ends[index - 1] - start
    num_ahead = engine.drafter.num_prefill_lookahead
    return engine.behaviour.kept_ahead(num_tokens, state.num_tokens - end, num_ahead, num_whole)


def _embeds_in(position: PlaceholderRange, start: int, end: int) -> bool:
    """Whether an embedding of the item falls in `[start, end)`."""
    if position.is_embed is None:
        return True
    return position.is_embed.find(1, max(0, start - position.offset), min(position.length, end - position.offset)) >= 0
