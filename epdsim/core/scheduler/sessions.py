"""Streaming sessions: requests whose input grows while they live.

A session's turn ends as a request would. The session then keeps its KV blocks and its place among `max_num_seqs`, forgets the last
output token (whose KV cache was never written) and waits for its next input, or goes on at once with input that came while it
ran. The rest of its output is prompt from then on.
"""

from __future__ import annotations

from typing import NamedTuple

from epdsim.core.request import StreamingUpdate
from epdsim.core.rules import Rule
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.preemption import give_up_blocks, preempt
from epdsim.core.scheduler.state import RequestState, Status


def keep_place(_engine: EngineState, _state: RequestState) -> None:
    """A preempted session whose turn has ended by late output goes on waiting where it stands."""


def lose_place(engine: EngineState, state: RequestState) -> None:
    """It is queued a second time and then taken out of every queue, so that nobody ever schedules it again: vLLM 0.32."""
    engine.waiting.discard(state)
    engine.holding.discard(state)


def queue_anew(engine: EngineState, state: RequestState) -> None:
    """Move a waiting session to the place that its new arrival time gives it, where arrival times matter."""
    if engine.config.policy == "priority":
        for queue in (engine.holding, engine.waiting):
            if any(one is state for one in queue):
                queue.discard(state)
                queue.add(state)


def leave_in_queue(_engine: EngineState, _state: RequestState) -> None:
    """Leave it where it is in the heap, whose order breaks: vLLM 0.32."""


def send_unknown(num_told: int) -> int:
    """Leading items that a session which goes on need not be sent again."""
    return num_told


def send_again(_num_told: int) -> int:
    """None: every item of the session is visited and sent with every input, stripped by progress (vLLM issue 58324)."""
    return 0


def give_way(engine: EngineState, draft: StepDraft, needy: RequestState) -> bool:
    """Let the last of the sessions that hold blocks, idle ones first, give them up, when nobody runs who would free some.

    Returns:
        Whether there was one.
    """
    aside = draft.holding_aside
    holding = [
        state for state in (*aside, *engine.holding) if state is not needy and state.status is not Status.LOADING
    ]
    others = [] if engine.running else holding
    if not others:
        return False
    idle = [state for state in others if state.status is Status.STREAMING]
    victim = (idle or others)[-1]
    aside.remove(victim) if victim in aside else engine.holding.discard(victim)
    give_up_blocks(engine, victim)
    return True


def hold_on(_engine: EngineState, _draft: StepDraft, _needy: RequestState) -> bool:
    """Sessions hold their blocks whatever happens, so that several may wait for each other for ever: vLLM 0.32."""
    return False


def preempt_holding(engine: EngineState) -> None:
    """A reset with running requests takes the blocks of sessions between two turns as well."""
    for state in reversed([one for one in engine.holding if one.status is not Status.LOADING]):
        engine.holding.discard(state)
        give_up_blocks(engine, state)


def leave_holding(_engine: EngineState) -> None:
    """They keep their blocks, so that the reset preempts all that runs and then raises: vLLM 0.32."""


def give_up_past(engine: EngineState, state: RequestState) -> None:
    """Give up the entries of all items that the turn has computed."""
    engine.release_past(state, state.num_computed)


def keep_last(_engine: EngineState, _state: RequestState) -> None:
    """Keep those that the last step was about to confirm, until the session runs again, which they may prevent: vLLM 0.32."""


class Frontier(NamedTuple):
    """Where a session stands whose turn has ended.

    Attributes:
        num_computed: Tokens that count as computed.
        num_kept: Known tokens that are kept.
    """

    num_computed: int
    num_kept: int


def within_output(num_computed: int, num_tokens: int) -> Frontier:
    """All tokens but the last, of which no more are computed, whatever drafts were right beyond it."""
    return Frontier(min(num_computed, num_tokens - 1), num_tokens - 1)


def as_computed(num_computed: int, num_tokens: int) -> Frontier:
    """Those that count as computed: vLLM 0.32.

    Drafts that were right beyond the end of the turn count for the first tokens of the next input; what is to be computed again
    after a load that failed is lost, of the prompt too.
    """
    return Frontier(num_computed, min(num_computed, num_tokens))


FRONTIER = Rule(
    "sessions.frontier",
    "A session keeps all tokens of a turn but the last, and its next input is computed from its first token on.",
    source="TOK-CONS on live workloads of vLLM 0.32.0 (drafts without async scheduling, failed loads with it); "
    "no public report known",
    ideal=within_output,
)
LATE_END = Rule(
    "sessions.late_end",
    "A session whose turn ends by the late output of a step before its preemption goes on waiting.",
    source="LIVE-PROG on live workloads of vLLM 0.32.0 (async scheduling); no public report known",
    ideal=keep_place,
)
TURN_ENTRIES = Rule(
    "sessions.turn_entries",
    "A session whose turn has ended holds no encoder-cache entry of an item that it has computed.",
    source="LIVE-PROG on live workloads of vLLM 0.32.0 (async scheduling); no public report known",
    ideal=give_up_past,
)
NEW_PLACE = Rule(
    "sessions.new_place",
    "A session that gets the arrival time of its next input stands at the place of that time in the priority order.",
    source="order of admission on live workloads of vLLM 0.32.0 (policy priority); no public report known",
    ideal=queue_anew,
)
BROADCAST = Rule(
    "sessions.broadcast",
    "A session that goes on is broadcast with the items that the workers do not hold yet, and no others.",
    source="vLLM issue 58324 (STRIP-COST)",
    ideal=send_unknown,
)
GIVE_WAY = Rule(
    "sessions.give_way",
    "When nobody runs and the next request lacks blocks, sessions that hold some between two turns give them up.",
    source="LIVE-PROG on live workloads of vLLM 0.32.0; no public report known",
    ideal=give_way,
)
RESET_HOLDING = Rule(
    "sessions.reset_holding",
    "A reset of the prefix cache that preempts running requests succeeds, whoever holds blocks.",
    source="vLLM 0.32.0 raises while a session waits for input; no public report known",
    ideal=preempt_holding,
)


def end_turn(engine: EngineState, state: RequestState) -> bool:
    """End the turn of a session that runs or is preempted.

    Returns:
        Whether its client has said that this was the last one, so that the caller finishes it.
    """
    updates = state.updates
    assert updates is not None, "only sessions have turns"
    # Steps under way may have gone beyond the end of the turn.
    frontier = engine.dialect[FRONTIER](state.num_computed - state.num_placeholders, state.num_tokens)
    state.num_computed = frontier.num_computed
    state.num_placeholders = state.num_drafts = 0
    state.num_stale = state.num_in_flight
    state.drops_stale = True
    if updates and updates[0] is None:
        return True
    engine.dialect[TURN_ENTRIES](engine, state)
    is_running = state.status is Status.RUNNING
    if is_running:
        engine.running.remove(state)
    else:
        engine.dialect[LATE_END](engine, state)
    state.keep_tokens(frontier.num_kept)
    state.status = Status.STREAMING
    engine.num_streaming += 1
    update = updates.popleft() if updates else None
    if update is not None:
        take_update(engine, state, update)
    if is_running:
        (engine.holding if state.num_computed else engine.waiting).add(state)
    return False


def take_update(engine: EngineState, state: RequestState, update: StreamingUpdate) -> None:
    """Take in the next input of a session that waits for it."""
    state.take_input(update, engine.behaviour.item_slots, engine.config.max_model_len)
    state.status = Status.WAITING
    engine.num_streaming -= 1
    engine.dialect[NEW_PLACE](engine, state)


def reset_running(engine: EngineState) -> None:
    """Preempt everybody, so that they come back in the same order; output of steps under way is dropped."""
    while engine.running:
        preempt(engine, engine.running.pop(), drops_output=True)
    engine.dialect[RESET_HOLDING](engine)
