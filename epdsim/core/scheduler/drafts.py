"""Draft tokens through the scheduler: how many a step may verify, what a rejection takes back, what a drafter reads ahead.

Drafts are counted; their ids are a matter of the workers. A request that has reached the end of its known tokens is given one
token to compute and its drafts behind it. With async scheduling nobody waits for a proposal: every such request is supposed to
have all drafts of the drafter in each step, which the workers fill in.
"""

from __future__ import annotations

from collections.abc import Mapping

from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.state import RequestState


def within_end(engine: EngineState, state: RequestState, num_tokens: int) -> int:
    """As many of the wanted tokens as are not past the end that steps under way may bring, or past what the model takes."""
    if state.num_placeholders and state.num_computed + 2 - state.num_placeholders >= state.asked_tokens:
        return 0
    return min(num_tokens, engine.config.max_model_len - 1 - state.num_computed)


def padded(engine: EngineState, draft: StepDraft, num_computed: int) -> int:
    """Tokens for an admission that has one left to compute: that one, or with a padding of drafts."""
    num_tokens = 1 + draft.max_drafts
    if num_computed + num_tokens >= engine.config.max_model_len:
        return 1
    is_padded = engine.behaviour.pads(num_computed, beside_decodes=bool(draft.cached), beside_prefill=draft.has_prefill)
    return num_tokens if is_padded else 1


def take_drafts(engine: EngineState, num_drafts: Mapping[str, int]) -> None:
    """Note what the drafter proposed after a step; nothing counts for a request in the middle of its prompt."""
    for request_id, proposed in num_drafts.items():
        assert 0 <= proposed <= engine.drafter.num_drafts, "more drafts than num_speculative_tokens"
        state = engine.requests.get(request_id)
        if state is not None:
            state.num_drafts = 0 if state.is_prefill else proposed
