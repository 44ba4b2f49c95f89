"""First phase of a step: requests that run go on, in order, as far as budget, blocks and encoder allow."""

from __future__ import annotations

from epdsim.core.scheduler_encoder import EncoderChoice, choose_encoder_inputs, take_encoder_inputs
from epdsim.core.scheduler_engine import EngineState, StepDraft
from epdsim.core.scheduler_preemption import preempt_one
from epdsim.core.scheduler_state import RequestState


def schedule_running(engine: EngineState, draft: StepDraft) -> None:
    """Give tokens to running requests; preempt others when blocks run out."""
    running = engine.running
    index = 0
    while index < len(running) and draft.tokens > 0:
        state = running[index]
        num_tokens = _wanted_tokens(engine, draft, state)
        choice: EncoderChoice | None = None
        if num_tokens > 0 and state.num_computed < state.last_media_end:
            choice = choose_encoder_inputs(engine, draft, state, state.num_computed, num_tokens)
            num_tokens = choice.num_tokens
        if num_tokens <= 0:
            index += 1
            continue
        num_blocks = engine.blocks_for(state.num_computed + num_tokens) - len(state.blocks)
        while num_blocks > engine.pool.num_free:
            victim, index = preempt_one(engine, draft, index)
            if victim is state:
                return
        _go_on(engine, draft, state, num_tokens, num_blocks)
        if choice is not None:
            take_encoder_inputs(engine, draft, state, choice)
        index += 1


def _wanted_tokens(engine: EngineState, draft: StepDraft, state: RequestState) -> int:
    """Tokens that the request can use in this step, as far as budgets of tokens go."""
    num_placeholders, num_computed = state.num_placeholders, state.num_computed
    if (
        num_placeholders
        and num_computed + 2 - num_placeholders >= state.request.prompt.num_tokens + state.request.max_tokens
    ):
        return 0  # the step under way yields its last token
    num_tokens = state.num_tokens + num_placeholders - num_computed
    if 0 < draft.long_prefill < num_tokens:
        num_tokens = draft.long_prefill
    return min(num_tokens, draft.tokens, engine.config.max_model_len - 1 - num_computed)


def _go_on(engine: EngineState, draft: StepDraft, state: RequestState, num_tokens: int, num_blocks: int) -> None:
    if num_blocks > 0:
        added = engine.pool.take(num_blocks)
        state.blocks += added
        draft.new_blocks[state.request_id] = added
    engine.publish(state, min(state.num_computed + num_tokens, state.num_tokens))
    draft.give(state, num_tokens)
    draft.running.append(state)
