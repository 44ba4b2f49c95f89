"""After a step: tokens come back, requests end, encoder-cache entries are given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epdsim.core.plan import StepPlan
from epdsim.core.prompt import TokenPrompt
from epdsim.core.scheduler_engine import EngineState
from epdsim.core.scheduler_state import RequestState, Status

SYNTHETIC = (0,)
"""What a request yields when nobody says: one token."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step brought.

    Attributes:
        new_tokens: Output tokens appended, by request.
        finished: Ids that reached their end.
        failed: Ids that ended with an error of their own.
    """

    new_tokens: Mapping[str, int]
    finished: Sequence[str] = ()
    failed: Sequence[str] = field(default=())


def update(engine: EngineState, plan: StepPlan, sampled: Mapping[str, Sequence[int]] | None) -> StepOutcome:
    """Take the output of a step into account."""
    new_tokens: dict[str, int] = {}
    finished: list[str] = []
    samples = frozenset(plan.samples) if sampled is None else frozenset[str]()
    for request_id, num_scheduled in plan.num_scheduled_tokens.items():
        state = engine.requests.get(request_id)
        if state is None:
            continue  # aborted while the step was under way
        state.num_in_flight -= num_scheduled
        is_stale = state.num_stale > 0
        if is_stale:
            state.num_stale -= num_scheduled
        if state.media_ends:
            progress = engine.behaviour.confirmed(state.num_computed, state.num_placeholders)
            engine.encoder_cache.release_past(request_id, state.request.mm_features, progress)
        if sampled is None:
            tokens = SYNTHETIC if request_id in samples else ()
        else:
            tokens = sampled.get(request_id, ())
        if not tokens:
            continue
        new_tokens[request_id] = _append(state, tokens, synthetic=sampled is None)
        if engine.config.async_scheduling:
            _settle(engine, state, new_tokens[request_id], is_stale=is_stale)
        if state.num_tokens >= state.end_tokens:
            finish(engine, state)
            finished.append(request_id)
    return StepOutcome(new_tokens, finished, _fail_refused(engine))


def finish(engine: EngineState, state: RequestState) -> None:
    """End a request in whatever state it is."""
    if state.status is Status.RUNNING:
        engine.running.remove(state)
    else:
        engine.waiting.discard(state)
    engine.encoder_cache.release_all(state.request_id, state.request.mm_features)
    engine.free_blocks(state)
    engine.finished.append(state.request_id)
    del engine.requests[state.request_id]


def _append(state: RequestState, tokens: Sequence[int], *, synthetic: bool) -> int:
    num_new = min(len(tokens), state.end_tokens - state.num_tokens)
    if isinstance(state.request.prompt, TokenPrompt):
        # Synthetic ids are negative and count upwards, as if equal prompts were answered equally.
        place = len(state.keys.outputs) + 1
        state.keys.outputs += range(-place, -place - num_new, -1) if synthetic else tokens[:num_new]
    state.num_tokens += num_new
    return num_new


def _settle(engine: EngineState, state: RequestState, num_new: int, *, is_stale: bool) -> None:
    """Async scheduling: tokens take the place of their placeholders, and blocks that they fill can be found from now on."""
    if not is_stale:
        state.num_placeholders -= num_new
        assert state.num_placeholders >= 0, "a token came without a placeholder"
    if state.status is Status.RUNNING:
        engine.publish(state, state.num_computed - state.num_placeholders)


def _fail_refused(engine: EngineState) -> Sequence[str]:
    if not engine.refused:
        return ()
    refused = [request_id for request_id in dict.fromkeys(engine.refused) if request_id in engine.requests]
    engine.refused = []
    for request_id in refused:
        finish(engine, engine.requests[request_id])
    return refused
