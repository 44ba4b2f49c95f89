"""Preemption: a running request loses its KV blocks, so that another one can go on."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.rules import Rule
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.state import RequestState, Status


def withdraw_runs(engine: EngineState, draft: StepDraft, victim: RequestState, items: Sequence[int]) -> bool:
    """Undo encoder runs that leave the step with the request that was to make them.

    A run goes over to another scheduled request that already relies on it; else its entry is forgotten, for nothing will fill it.

    Returns:
        Whether an encoder choice that was made before may rely on what is gone.
    """
    cache = engine.encoder_cache
    for index in items:
        identifier = victim.features[index].identifier
        users = sorted(set(cache.users(identifier)) - {victim.request_id})
        places = {name: _places(engine, name, identifier) for name in users}
        heir = next((name for name in draft.num_scheduled if name in places), None)
        if heir is not None:
            draft.encoder_inputs[heir] = sorted([*draft.encoder_inputs.get(heir, ()), places[heir][0]])
            draft.encoder_embeds -= victim.media_embeds[index]
            continue
        for name in (victim.request_id, *users):
            for place in _places(engine, name, identifier):
                cache.release(name, engine.requests[name].features, place)
        cache.forget(identifier)
        if engine.ec is not None:
            engine.ec.withdrawn(identifier)
    return bool(items)


def leave_entries(_engine: EngineState, _draft: StepDraft, _victim: RequestState, _items: Sequence[int]) -> bool:
    """Drop the runs and leave their entries, which later requests take for filled: vLLM 0.32."""
    return False


def retract_unwritten(engine: EngineState, victim: RequestState, num_tokens: int) -> None:
    """Hide the victim's blocks that its last `num_tokens` tokens were to fill, which will not be computed in this step."""
    num_written = (victim.num_computed - num_tokens) // engine.config.block_size
    for block in victim.blocks[num_written : victim.num_published]:
        engine.pool.lose_key(block)


def leave_unwritten(_engine: EngineState, _victim: RequestState, _num_tokens: int) -> None:
    """Leave them findable, so that a later request reads what was never written: vLLM 0.32."""


UNWRITTEN = Rule(
    "scheduler.unwritten",
    "A block that a preempted request was to fill in this step cannot be found.",
    source="KV content on schedules recorded from vLLM 0.32.0 (policy priority); no public report known",
    ideal=retract_unwritten,
)
WITHDRAWN = Rule(
    "scheduler.withdrawn",
    "An encoder run that leaves a step with its preempted request goes over to a request that relies on it, or leaves no entry.",
    source="ENC-HIT on schedules recorded from vLLM 0.32.0 (policy priority); no public report known",
    ideal=withdraw_runs,
)


def preempt_one(engine: EngineState, draft: StepDraft, index: int) -> tuple[RequestState, int, bool] | None:
    """Preempt the victim of the policy.

    Args:
        engine: Its running list loses the victim.
        draft: What the victim got in this step comes back to its budget.
        index: Place in the running list of the request that needs blocks.

    Returns:
        The victim, the place of the needy request after its removal, and whether its encoder choice must be made again; None when
        the victim's blocks would not come free now, so that nobody is preempted.
    """
    victim_index = engine.behaviour.victim(engine.running, engine.config.policy)
    victim = engine.running[victim_index]
    if engine.transfers is not None and not engine.transfers.is_settled(victim):
        return None
    del engine.running[victim_index]
    is_void = False
    num_tokens = draft.num_scheduled.get(victim.request_id, 0)
    if num_tokens:
        engine.dialect[UNWRITTEN](engine, victim, num_tokens)
        withdrawn = draft.take_back(victim)
        is_void = bool(withdrawn) and engine.dialect[WITHDRAWN](engine, draft, victim, withdrawn)
    draft.preempts = True
    preempt(engine, victim, drops_output=engine.transfers is not None and engine.transfers.delivers)
    return victim, engine.behaviour.cursor(index, victim_index, was_scheduled=num_tokens > 0), is_void


def preempt(engine: EngineState, victim: RequestState, *, drops_output: bool = False) -> None:
    """Send a request, already out of the running list, back to wait with nothing computed.

    Args:
        engine: Its waiting queue gets the victim.
        victim: Loses blocks and embeddings.
        drops_output: Whether output of steps under way is dropped, so that the request may come back at once. Else it still counts
            when it comes, but must not touch the counters that start afresh.
    """
    victim.status = Status.PREEMPTED
    victim.was_preempted = True
    victim.drops_stale = drops_output or (victim.drops_stale and victim.num_stale > 0)
    victim.num_stale = victim.num_in_flight
    victim.num_placeholders = victim.num_drafts = 0
    give_up_blocks(engine, victim)


def give_up_blocks(engine: EngineState, state: RequestState) -> None:
    """Take away all that a request, out of every queue, has computed, and let it wait ahead of the others."""
    engine.free_blocks(state)
    if engine.transfers is not None:
        engine.transfers.prefills.pop(state.request_id, None)
    engine.encoder_cache.release_all(state.request_id, state.features)
    state.num_computed = state.num_told = 0
    engine.waiting.add_first([state])
    engine.preempted.append(state.request_id)


def _places(engine: EngineState, request_id: str, identifier: str) -> list[int]:
    """Held occurrences of an item in a request."""
    features = engine.requests[request_id].features
    return [
        index for index in sorted(engine.encoder_cache.held(request_id)) if features[index].identifier == identifier
    ]
