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
    running, pool = engine.running, engine.pool
    index = 0
    while index < len(running) and draft.tokens > 0:
        state = running[index]
        num_tokens = _wanted_tokens(draft, state)
        choice: EncoderChoice | None = None
        if state.num_computed < state.last_media_end and num_tokens:
            choice = choose_encoder_inputs(engine, draft, state, state.num_computed, num_tokens)
            num_tokens = choice.num_tokens
        if num_tokens == 0:
            index += 1
            continue
        end = state.num_computed + num_tokens
        added: Sequence[int] | None = None
        if end > state.capacity:
            while engine.blocks_for(end) - len(state.blocks) > pool.num_free:
                victim, index = preempt_one(engine, draft, index)
                if victim is state:
                    return
            added = engine.extend(state, end)
        draft.cached.append(CachedRequestData(state.request_id, state.num_computed, added))
        engine.publish(state, min(end, state.num_tokens))
        draft.spend(state, num_tokens)
        if choice is not None:
            take_encoder_inputs(engine, draft, state, choice)
        index += 1


def _wanted_tokens(draft: StepDraft, state: RequestState) -> int:
    """Tokens that the request can use in this step, as far as budgets of tokens go."""
    num_placeholders, num_computed = state.num_placeholders, state.num_computed
    if num_placeholders and num_computed + 2 - num_placeholders >= state.end_tokens:
        return 0  # a step under way yields its last token
    num_tokens = state.num_tokens + num_placeholders - num_computed
    if 0 < draft.long_prefill < num_tokens:
        num_tokens = draft.long_prefill
    return min(num_tokens, draft.tokens)
