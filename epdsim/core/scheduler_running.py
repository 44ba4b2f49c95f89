"""First phase of a step: requests that run go on, in order, as far as budget, blocks and encoder allow."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.plan import CachedRequestData
from epdsim.core.scheduler_encoder import EncoderChoice, choose_encoder_inputs, take_encoder_inputs
from epdsim.core.scheduler_engine import EngineState, StepDraft
from epdsim.core.scheduler_preemption import preempt_one
from epdsim.core.scheduler_state import RequestState


def schedule_running(engine: EngineState, draft: StepDraft) -> None:
    """Give tokens to running requests; preempt others when blocks run out."""
    running, pool, ec = engine.running, engine.pool, engine.ec
    index = 0
    while index < len(running) and draft.tokens > 0:
        state = running[index]
        num_computed = state.num_computed
        num_tokens = state.num_tokens + state.num_placeholders - num_computed
        if num_tokens > 1:
            num_tokens = draft.limited(num_tokens)
        if state.num_placeholders:
            num_tokens = _beyond_placeholders(engine, state, num_tokens)
        if ec is not None and state.features and num_tokens:
            num_tokens *= ec.ready(state.request, num_computed - state.num_placeholders)
        choice: EncoderChoice | None = None
        if num_computed < state.last_media_end and num_tokens:
            choice = choose_encoder_inputs(engine, draft, state, num_computed, num_tokens)
            num_tokens = choice.num_tokens
        if not num_tokens:
            index += 1
            continue
        end = num_computed + num_tokens
        added: Sequence[int] | None = None
        if end > state.capacity:
            is_void = False
            while engine.blocks_for(end) - len(state.blocks) > pool.num_free and not is_void:
                victim, index, is_void = preempt_one(engine, draft, index)
                if victim is state:
                    return
            if is_void:
                continue
            added = engine.extend(state, end)
        draft.cached.append(CachedRequestData(state.request_id, num_computed, added))
        if end >= state.publish_at:
            engine.publish(state, min(end, state.num_tokens))
        draft.spend(state, num_tokens)
        if choice is not None:
            take_encoder_inputs(engine, draft, state, choice)
        index += 1


def _beyond_placeholders(engine: EngineState, state: RequestState, num_tokens: int) -> int:
    """Async scheduling: as many of the wanted tokens as are not past the end that steps under way may bring."""
    if state.num_computed + 2 - state.num_placeholders >= state.asked_tokens:
        return 0
    return min(num_tokens, engine.config.max_model_len - 1 - state.num_computed)
