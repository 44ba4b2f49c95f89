"""Preemption: a running request loses its KV blocks, so that another one can go on."""

from __future__ import annotations

from epdsim.core.scheduler_engine import EngineState, StepDraft
from epdsim.core.scheduler_state import RequestState, Status


def preempt_one(engine: EngineState, draft: StepDraft, index: int) -> tuple[RequestState, int]:
    """Preempt the victim of the policy.

    Args:
        engine: Its running list loses the victim.
        draft: What the victim got in this step comes back to its budget.
        index: Place in the running list of the request that needs blocks.

    Returns:
        The victim, and the place of the needy request after its removal.
    """
    victim_index = engine.behaviour.victim(engine.running, engine.config.policy)
    victim = engine.running.pop(victim_index)
    draft.take_back(victim)
    draft.preempts = True
    preempt(engine, victim)
    return victim, index - (victim_index < index)


def preempt(engine: EngineState, victim: RequestState) -> None:
    """Send a request, already out of the running list, back to wait with nothing computed."""
    engine.free_blocks(victim)
    engine.encoder_cache.release_all(victim.request_id, victim.features)
    victim.status = Status.PREEMPTED
    victim.num_computed = 0
    # Output of steps under way still counts when it comes back, but must not touch the counters that start afresh.
    victim.num_stale = victim.num_in_flight
    victim.num_placeholders = 0
    engine.waiting.add_first([victim])
    engine.preempted.append(victim.request_id)
