"""After a step: tokens come back, requests end, encoder-cache entries are given up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Final

from epdsim.core.ec.connector import NOTHING_FAILED
from epdsim.core.plan import StepPlan, TransferReport
from epdsim.core.records import record
from epdsim.core.scheduler.engine import EngineState
from epdsim.core.scheduler.load_failures import take_failures
from epdsim.core.scheduler.loads import take_completed, withholds
from epdsim.core.scheduler.sessions import end_turn
from epdsim.core.scheduler.state import RequestState, Status

SYNTHETIC: Final = (0,)
"""What a request yields when nobody says: one token, for prompts with ids a negative one that counts upwards."""


@record
class StepOutcome:
    """What a step brought.

    Attributes:
        new_tokens: Output tokens appended, by request.
        finished: Ids that reached their end.
        failed: Requests that ended with an error of their own, with the reason, in the order in which they ended.
        turned: Sessions whose turn ended and that live on.
    """

    new_tokens: Mapping[str, int]
    finished: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    turned: Sequence[str] = field(default=())


def update(
    engine: EngineState, plan: StepPlan, sampled: Mapping[str, Sequence[int]] | None, report: TransferReport | None
) -> StepOutcome:
    """Take the output of a step into account."""
    transfers = engine.transfers
    void: Collection[str] = ()
    if transfers is not None:
        for table in transfers.done(computed=bool(plan.num_scheduled_tokens)):
            engine.pool.release(table)
        if report is not None:
            void = take_failures(engine, transfers, plan, report)
    outcome = _take_tokens(engine, plan, sampled, void)
    if transfers is not None and report is not None:
        take_completed(engine, transfers, report)
    return outcome


def _take_tokens(
    engine: EngineState, plan: StepPlan, sampled: Mapping[str, Sequence[int]] | None, void: Collection[str]
) -> StepOutcome:
    """Take the tokens of a step, except of those requests whose output is void."""
    requests, cache, is_async = engine.requests, engine.encoder_cache, engine.config.async_scheduling
    encodes_only = engine.config.mm_encoder_only
    scheduled_drafts, behaviour = plan.num_scheduled_spec_tokens, engine.behaviour
    given: Mapping[str, Sequence[int]] = dict.fromkeys(plan.samples, SYNTHETIC) if sampled is None else sampled
    new_tokens: dict[str, int] = {}
    finished: list[str] = []
    turned: list[str] = []
    for request_id, num_scheduled in plan.num_scheduled_tokens.items():
        state = requests.get(request_id)
        if state is None:
            continue  # aborted while the step was under way
        state.num_in_flight -= num_scheduled
        is_stale = state.num_stale > 0
        if is_stale:
            state.num_stale -= num_scheduled
        if request_id in void or (is_stale and state.drops_stale):
            continue
        tokens = given.get(request_id)
        if tokens and request_id in scheduled_drafts:
            _roll_back(state, behaviour.num_rejected(scheduled_drafts[request_id], len(tokens), is_stale=is_stale))
        if state.features and cache.held(request_id):
            engine.release_past(state, engine.encoder_progress(state))
        if not tokens:
            if encodes_only and engine.behaviour.encoded(state.num_computed, state.num_in_flight) >= state.num_prompt:
                finish(engine, state)
                finished.append(request_id)
            continue
        if len(tokens) > state.end_tokens - state.num_tokens:
            tokens = tokens[: state.end_tokens - state.num_tokens]
        stops = state.stop_token_ids
        tokens, is_stopped = _stopped(tokens, stops) if stops else (tokens, False)
        new_tokens[request_id] = num_new = len(tokens)
        state.num_tokens += num_new
        if state.outputs is not None:
            state.outputs += tokens if sampled is not None else (-1 - len(state.outputs),)
        if is_async:
            _settle(engine, state, num_new, is_stale=is_stale)
        if is_stopped or state.num_tokens >= state.end_tokens:
            (finished if end_request(engine, state) else turned).append(request_id)
    return StepOutcome(new_tokens, finished, _fail(engine, void), turned)


def _stopped(tokens: Sequence[int], stop_token_ids: frozenset[int]) -> tuple[Sequence[int], bool]:
    """Tokens up to the first that ends a request, and whether there is one."""
    for index, token in enumerate(tokens):
        if token in stop_token_ids:
            return tokens[: index + 1], True
    return tokens, False


def end_request(engine: EngineState, state: RequestState) -> bool:
    """End a request that has what it asked for; False when it is a session that has but finished a turn."""
    if state.updates is not None and not end_turn(engine, state):
        return False
    finish(engine, state, has_ended=True)
    return True


def finish(engine: EngineState, state: RequestState, *, has_ended: bool = False) -> None:
    """End a request in whatever state it is.

    Args:
        engine: Forgets it.
        state: The request.
        has_ended: Whether it ends because it has all its tokens.
    """
    if state.status is Status.RUNNING:
        engine.running.remove(state)
    else:
        engine.num_streaming -= state.status is Status.STREAMING
        engine.waiting.discard(state)
        engine.holding.discard(state)
    if engine.ec is not None:
        engine.ec.ended(state.request)
    engine.encoder_cache.release_all(state.request_id, state.features)
    if engine.transfers is None or not withholds(engine.transfers, state, has_ended=has_ended):
        engine.free_blocks(state)
    engine.finished.append(state.request_id)
    del engine.requests[state.request_id]


def _roll_back(state: RequestState, num_rejected: int) -> None:
    """Take back what a step computed for drafts that were wrong."""
    if state.num_computed:
        state.num_computed -= num_rejected
    if state.num_placeholders:
        state.num_placeholders -= num_rejected


def _settle(engine: EngineState, state: RequestState, num_new: int, *, is_stale: bool) -> None:
    """Async scheduling: tokens take the place of their placeholders, and blocks that they fill can be found from now on."""
    if not is_stale:
        state.num_placeholders -= num_new
        assert state.num_placeholders >= 0, "a token came without a placeholder"
    if state.num_tokens >= state.publish_at and state.status is Status.RUNNING:
        engine.publish(state, state.num_computed - state.num_placeholders)


LOAD_FAILED = "its KV cache could not be loaded"
"""Why a request fails whose load did, where the policy says so."""


def _fail(engine: EngineState, void: Collection[str]) -> Mapping[str, str]:
    """End the requests that cannot go on, each alone."""
    reasons = engine.refused
    if not reasons and not void and engine.ec is None:
        return NOTHING_FAILED
    lost: dict[str, str] = {}
    if engine.ec is not None:
        lost.update(engine.ec.take_failed())
    if void and engine.transfers is not None and not engine.transfers.recomputes:
        lost.update(dict.fromkeys(void, LOAD_FAILED))
    if lost:
        reasons = {**reasons, **{name: lost[name] for name in sorted(lost) if name not in reasons}}
    if not reasons:
        return NOTHING_FAILED
    failed = {name: reason for name, reason in reasons.items() if name in engine.requests}
    engine.refused = {}
    for request_id in failed:
        finish(engine, engine.requests[request_id])
    return failed
