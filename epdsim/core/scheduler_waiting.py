"""Second phase of a step: requests that wait are admitted, in the order of the policy, until one does not fit."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.scheduler_drafts import padded
from epdsim.core.scheduler_encoder import EncoderChoice, choose_encoder_inputs, take_encoder_inputs
from epdsim.core.scheduler_engine import EngineState, PauseState, StepDraft
from epdsim.core.scheduler_queues import WaitingQueue
from epdsim.core.scheduler_sessions import GIVE_WAY
from epdsim.core.scheduler_state import RequestState, Status

LOOK_AHEAD = 32
"""Block keys that a look-up computes at a time."""


def schedule_waiting(engine: EngineState, draft: StepDraft) -> None:
    """Admit requests, those that hold blocks first; in a step that preempts nobody is admitted."""
    waiting, holding, max_num_seqs, ec = engine.waiting, engine.holding, engine.config.max_num_seqs, engine.ec
    if draft.preempts or not (len(waiting) or len(holding)):
        return
    not_ready: list[RequestState] = []
    while draft.tokens > 0 and len(engine.running) + engine.num_streaming < max_num_seqs:
        queue, set_aside = (holding, draft.holding_aside) if len(holding) else (waiting, not_ready)
        if not len(queue) or (queue is waiting and engine.pause_state is not PauseState.UNPAUSED):
            break
        state = queue.peek()
        if state.status is Status.STREAMING or (state.num_stale and not state.drops_stale):
            # It has no input, or its own late output will extend it: it cannot go on before that is known.
            set_aside.append(queue.pop())
        elif ec is not None and state.features and not ec.ready(state.request, _start(engine, state)[1]):
            # It waits for embeddings, and nobody behind it waits for that.
            set_aside.append(queue.pop())
        elif not _admit(engine, draft, queue, state):
            break
    if draft.holding_aside:
        holding.add_first(draft.holding_aside)
    if not_ready:
        waiting.add_first(not_ready)


def find_prefix(engine: EngineState, state: RequestState) -> Sequence[int]:
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


def _start(engine: EngineState, state: RequestState) -> tuple[Sequence[int], int]:
    """The blocks that a request holds or that are found for it, and how many tokens it would start with."""
    if state.blocks:
        return state.blocks, state.num_computed
    hit = find_prefix(engine, state)
    return hit, max(len(hit) * engine.config.block_size, min(state.num_remote, state.num_tokens - 1))


def _admit(engine: EngineState, draft: StepDraft, queue: WaitingQueue, state: RequestState) -> bool:
    """Admit the head of a queue, if it fits; else change nothing but the books of the encoder cache."""
    holds = bool(state.blocks)
    hit, num_computed = _start(engine, state)
    num_local = 0 if holds else len(hit) * engine.config.block_size
    num_tokens, num_drafts = _wanted(engine, draft, state, num_computed)
    choice: EncoderChoice | None = None
    if num_computed < state.last_media_end and num_tokens:
        choice = choose_encoder_inputs(engine, draft, state, num_computed, num_tokens)
        num_tokens = choice.num_tokens
    num_ahead = engine.drafter.num_prefill_lookahead
    if num_ahead > 1:
        num_tokens = engine.behaviour.kept_ahead(num_tokens, state.num_tokens - num_computed - num_tokens, num_ahead)
    if num_tokens == 0:
        return False
    end = num_computed + num_tokens
    room = engine.with_lookahead(end)
    while not _fits(engine, state, hit, room):
        if engine.dialect[GIVE_WAY](engine, draft, state):
            continue
        if state.features and engine.behaviour.gives_back():
            engine.encoder_cache.release_all(state.request_id, state.features)
        return False
    queue.pop() if queue.peek() is state else queue.discard(state)  # sessions that gave way may stand before it now
    engine.running.append(state)
    if not holds:
        engine.pool.hold(hit)
        state.blocks, state.num_published, state.num_computed, state.num_remote = list(hit), len(hit), num_computed, 0
    engine.extend(state, room)
    engine.publish(state, min(end, state.num_tokens))
    (draft.resumed if state.status is Status.PREEMPTED else draft.admitted).append((state, num_local))
    state.status = Status.RUNNING
    state.hit, state.hit_epoch = [], -1
    state.num_drafts = num_drafts
    draft.spend(state, num_tokens)
    if choice is not None:
        take_encoder_inputs(engine, draft, state, choice)
    return True


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


def _fits(engine: EngineState, state: RequestState, hit: Sequence[int], end: int) -> bool:
    """Whether the free blocks suffice, of which found blocks that nobody holds are a part."""
    if engine.config.scheduler_reserve_full_isl:
        end = max(end, state.num_tokens)
    num_new = engine.blocks_for(end) + state.num_cross_blocks - len(hit)
    free = engine.pool.num_free
    return num_new <= free and num_new + engine.pool.num_idle(hit) <= free
