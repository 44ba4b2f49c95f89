"""First phase of a step: requests that run go on, in order, as far as budget, blocks and encoder allow."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.plan import CachedRequestData
from epdsim.core.scheduler.drafts import within_end
from epdsim.core.scheduler.encoder import EncoderChoice, choose_encoder_inputs, leave_ahead, take_encoder_inputs
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.preemption import preempt_one
from epdsim.core.scheduler.state import RequestState


def schedule_running(engine: EngineState, draft: StepDraft) -> None:
    """Give tokens to running requests; preempt others when blocks run out."""
    running, pool, drafter = engine.running, engine.pool, engine.drafter
    num_lookahead, num_ahead = drafter.num_lookahead, drafter.num_prefill_lookahead
    is_special = engine.ec is not None or engine.config.mamba_block_aligned_split
    index = 0
    while index < len(running) and draft.tokens > 0:
        state = running[index]
        num_computed = state.num_computed
        num_tokens = state.num_tokens + state.num_drafts + state.num_placeholders - num_computed
        if num_tokens > 1:
            num_tokens = draft.limited(num_tokens)
        if is_special or state.num_placeholders or state.num_drafts:
            num_tokens = _narrowed(engine, state, num_tokens)
        choice: EncoderChoice | None = None
        if num_computed < state.last_media_end and num_tokens:
            choice = choose_encoder_inputs(engine, draft, state, num_computed, num_tokens)
            num_tokens = choice.num_tokens
        if num_ahead > 1:
            num_tokens = leave_ahead(engine, state, num_computed, num_tokens)
        if not num_tokens:
            index += 1
            continue
        end = num_computed + num_tokens
        room = engine.with_lookahead(end) if num_lookahead else end
        added: Sequence[int] | None = None
        if room > state.capacity:
            if engine.blocks_for(room) - len(state.blocks) > pool.num_free:
                place = _make_room(engine, draft, index, room)
                if place is None:
                    return
                index, is_void = place
                if is_void:
                    continue
            added = engine.extend(state, room)
        draft.cached.append(CachedRequestData(state.request_id, num_computed, added))
        if end >= state.publish_at:
            engine.publish(state, min(end, state.num_tokens))
        draft.has_prefill |= state.is_prefill
        draft.spend(state, num_tokens)
        if choice is not None:
            take_encoder_inputs(engine, draft, state, choice)
        index += 1


def _make_room(engine: EngineState, draft: StepDraft, index: int, end: int) -> tuple[int, bool] | None:
    """Preempt until there are blocks for the first `end` tokens of the running request at `index`.

    Returns:
        Its place then, and whether its encoder choice must be made again; None when there is no room in this step.
    """
    state, is_void = engine.running[index], False
    while engine.blocks_for(end) - len(state.blocks) > engine.pool.num_free and not is_void:
        preempted = preempt_one(engine, draft, index)
        if preempted is None or preempted[0] is state:
            return None
        _, index, is_void = preempted
    return index, is_void


def _narrowed(engine: EngineState, state: RequestState, num_tokens: int) -> int:
    """As many of the wanted tokens as what is under way, the model's length, a transfer and block boundaries allow."""
    ec = engine.ec
    if state.num_placeholders or state.num_drafts:
        num_tokens = within_end(engine, state, num_tokens)
    if ec is not None and state.features and num_tokens:
        num_tokens *= ec.ready(state.request, state.num_computed - state.num_placeholders)
    if engine.config.mamba_block_aligned_split:
        num_tokens = engine.behaviour.aligned_chunk(engine.config, state, state.num_computed, num_tokens)
    return num_tokens
