"""Second phase of a step: requests that wait are admitted, in the order of the policy, until one does not fit."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from epdsim.core.scheduler.drafts import padded
from epdsim.core.scheduler.encoder import EncoderChoice, choose_encoder_inputs, leave_ahead, take_encoder_inputs
from epdsim.core.scheduler.engine import EngineState, PauseState, StepDraft
from epdsim.core.scheduler.loads import begin_load, has_arrived, load_behind, remote_tokens
from epdsim.core.scheduler.queues import WaitingQueue
from epdsim.core.scheduler.sessions import GIVE_WAY
from epdsim.core.scheduler.state import RequestState, Status

LOOK_AHEAD: Final = 32
"""Block keys that a look-up computes at a time."""


class _Verdict(Enum):
    """What becomes of a waiting request in a step."""

    ADMITTED = "admitted"
    SET_ASIDE = "set aside"
    """It cannot go on now, others can."""
    BLOCKS = "blocks"
    """It does not fit, and nobody overtakes it."""


def schedule_waiting(engine: EngineState, draft: StepDraft) -> None:
    """Admit requests, those that hold blocks first; in a step that preempts nobody is admitted."""
    waiting, holding, max_num_seqs = engine.waiting, engine.holding, engine.config.max_num_seqs
    if draft.preempts or not (waiting.members or holding.members):
        return
    not_ready: list[RequestState] = []
    while draft.tokens > 0 and len(engine.running) + engine.num_streaming < max_num_seqs:
        queue = holding if holding.members else waiting
        if not queue.members or (queue is waiting and engine.pause_state is not PauseState.UNPAUSED):
            break
        verdict = _admit(engine, draft, queue, queue.peek())
        if verdict is _Verdict.SET_ASIDE:
            state = queue.pop()
            holds_blocks = state.num_computed or state.status is Status.LOADING
            (draft.holding_aside if holds_blocks else not_ready).append(state)
        elif verdict is _Verdict.BLOCKS:
            break
    if draft.holding_aside:
        holding.add_first(draft.holding_aside)
    if not_ready:
        waiting.add_first(not_ready)


def find_prefix(engine: EngineState, state: RequestState) -> list[int]:
    """The blocks of the longest known prefix of a request that holds none, leaving at least one token to compute.

    A request that does not fit is looked up again in every step, so what was found is kept as long as it must still be true: no key
    was lost since, and the key that was not found then is not found now.
    """
    pool = engine.pool
    if not pool.enable_caching:
        return []
    limit = engine.behaviour.hit_limit(state.num_tokens) // engine.config.block_size
    blocks = state.hit
    if state.hit_epoch != pool.num_lost:
        blocks = []
        state.hit_epoch = pool.num_lost
    state.hit = blocks
    while len(blocks) < limit:
        stop = min(limit, len(blocks) + LOOK_AHEAD)
        blocks += pool.find_all(state.keys.upto(stop)[len(blocks) : stop])
        if len(blocks) < stop:
            break
    return engine.behaviour.usable_hit(blocks, drops_block=engine.drafter.drops_block)


class _Start(NamedTuple):
    """Where an admission starts.

    Attributes:
        hit: Blocks found, for a request that holds none.
        num_cached: Tokens that the prefix cache held.
        num_computed: Those and the tokens that come from outside.
        is_async: Whether these are loaded between steps first.
    """

    hit: list[int]
    num_cached: int
    num_computed: int
    is_async: bool


def _admit(engine: EngineState, draft: StepDraft, queue: WaitingQueue, state: RequestState) -> _Verdict:
    """Admit the head of a queue, if it fits; else change nothing but the books of the encoder cache and of its load."""
    start = _start(engine, state) if _is_ready(engine, state) else None
    if start is None:
        return _Verdict.SET_ASIDE
    hit, _, num_computed, is_async = start
    if is_async:
        has_begun = begin_load(engine, draft, state, hit, num_computed)
        return _Verdict.SET_ASIDE if has_begun else _Verdict.BLOCKS
    num_tokens, num_drafts = _wanted(engine, draft, state, num_computed)
    choice: EncoderChoice | None = None
    if num_computed < state.last_media_end and num_tokens:
        choice = choose_encoder_inputs(engine, draft, state, num_computed, num_tokens)
        num_tokens = choice.num_tokens
    if engine.drafter.num_prefill_lookahead > 1:
        num_tokens = leave_ahead(engine, state, num_computed, num_tokens)
    if num_tokens == 0:
        return _Verdict.BLOCKS
    end = num_computed + num_tokens
    while not engine.fits(state, hit, engine.with_lookahead(end)):
        if engine.dialect[GIVE_WAY](engine, draft, state):
            continue
        if state.features and engine.behaviour.gives_back():
            engine.encoder_cache.release_all(state.request_id, state.features)
        return _Verdict.BLOCKS
    queue.pop() if queue.peek() is state else queue.discard(state)  # sessions that gave way may stand before it now
    _join(engine, draft, state, start, end)
    state.num_drafts = num_drafts
    draft.spend(state, num_tokens)
    if choice is not None:
        take_encoder_inputs(engine, draft, state, choice)
    return _Verdict.ADMITTED


def _is_ready(engine: EngineState, state: RequestState) -> bool:
    """Whether a request waits for nothing but its turn."""
    if state.status is Status.STREAMING or (state.status is Status.LOADING and not has_arrived(engine, state)):
        return False
    # Late output of its own, if it counts, will extend it: it cannot be resumed before that is known.
    return not state.num_stale or state.drops_stale


def _start(engine: EngineState, state: RequestState) -> _Start | None:
    """Look up what is known of a request; None when the KV connector does not know yet, or embeddings are still to come."""
    if state.num_computed:
        start = _Start([], state.num_cached, state.num_computed, False)
    else:
        hit = find_prefix(engine, state)
        num_cached = len(hit) * engine.config.block_size
        offer = remote_tokens(state, num_cached)
        if offer is None:
            return None
        start = _Start(hit, num_cached, num_cached + offer[0], offer[1])
    if engine.ec is not None and state.features and not engine.ec.ready(state.request, start.num_computed):
        return None
    return start


def _wanted(engine: EngineState, draft: StepDraft, state: RequestState, num_computed: int) -> tuple[int, int]:
    """Tokens that an admission is to compute next, before the encoder is asked, and the padding among them; 0 for none now."""
    num_left = state.num_tokens - num_computed
    if draft.max_drafts and num_left == 1:
        num_left = padded(engine, draft, num_computed)
        if num_left > draft.tokens:
            return 0, 0
    num_drafts = num_left - 1 if num_computed + num_left > state.num_tokens else 0
    num_tokens = min(draft.long_prefill or num_left, num_left)
    if num_tokens > draft.tokens:
        if not (engine.config.enable_chunked_prefill or engine.encodes_in_parts):
            return 0, 0
        num_tokens = draft.tokens
    if engine.config.mamba_block_aligned_split:
        num_tokens = engine.behaviour.aligned_chunk(engine.config, state, num_computed, num_tokens)
        if num_drafts and 0 < num_tokens <= num_drafts:
            num_tokens, num_drafts = 1, 0
    return num_tokens, num_drafts


def _join(engine: EngineState, draft: StepDraft, state: RequestState, start: _Start, end: int) -> None:
    """Let a request run, with blocks for its first `end` tokens."""
    engine.running.append(state)
    if not state.num_computed:
        engine.adopt(state, start.hit)
        state.num_computed = start.num_computed
        state.num_loads -= state.num_loads > 0
        if start.num_computed > start.num_cached:
            engine.extend(state, start.num_computed)
            draft.kv_loads.append(load_behind(engine, state, start.hit, start.num_computed, is_async=False))
    engine.extend(state, engine.with_lookahead(end))
    engine.publish(state, min(end, state.num_tokens))
    if engine.transfers is not None and end < state.num_tokens:
        engine.transfers.prefills[state.request_id] = state
    (draft.resumed if state.status is Status.PREEMPTED else draft.admitted).append((state, start.num_cached))
    state.status = Status.RUNNING
    state.num_cached = 0
    state.hit, state.hit_epoch = [], -1
