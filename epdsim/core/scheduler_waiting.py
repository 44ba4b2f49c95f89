"""Second phase of a step: requests that wait are admitted, in the order of the policy, until one does not fit."""

from __future__ import annotations

from typing import NamedTuple

from epdsim.core.scheduler_encoder import EncoderChoice, choose_encoder_inputs, take_encoder_inputs
from epdsim.core.scheduler_engine import EngineState, StepDraft
from epdsim.core.scheduler_state import RequestState, Status


class PrefixHit(NamedTuple):
    """What need not be computed for an admission.

    Attributes:
        blocks: Blocks found in the pool.
        num_local: Tokens in them.
        num_computed: Those and the tokens whose KV cache another engine hands over.
    """

    blocks: list[int]
    num_local: int
    num_computed: int


def schedule_waiting(engine: EngineState, draft: StepDraft) -> None:
    """Admit requests; in a step that preempts nobody is admitted."""
    if draft.preempts:
        return
    waiting, set_aside = engine.waiting, list[RequestState]()
    while draft.tokens > 0 and len(waiting) and len(engine.running) < engine.config.max_num_seqs:
        state = waiting.peek()
        if state.num_stale:
            # Its own late output will extend it: it cannot be resumed before that is known.
            set_aside.append(waiting.pop())
        elif not _admit(engine, draft, state):
            break
    waiting.add_first(set_aside)


def find_prefix(engine: EngineState, state: RequestState) -> PrefixHit:
    """The longest known prefix of a request that holds no blocks."""
    blocks: list[int] = []
    if engine.pool.enable_caching:
        find, keys = engine.pool.find, state.keys
        for index in range(engine.behaviour.hit_limit(state.num_tokens) // engine.config.block_size):
            block = find(keys.key(index))
            if not block:
                break
            blocks.append(block)
    num_local = len(blocks) * engine.config.block_size
    return PrefixHit(blocks, num_local, max(num_local, min(state.num_remote, state.num_tokens - 1)))


def _admit(engine: EngineState, draft: StepDraft, state: RequestState) -> bool:
    """Admit the head of the queue, if it fits; else change nothing but the encoder cache's order of eviction."""
    hit = find_prefix(engine, state)
    num_tokens = state.num_tokens - hit.num_computed
    if 0 < draft.long_prefill < num_tokens:
        num_tokens = draft.long_prefill
    if num_tokens > draft.tokens:
        if not engine.config.enable_chunked_prefill:
            return False
        num_tokens = draft.tokens
    choice: EncoderChoice | None = None
    if hit.num_computed < state.last_media_end:
        choice = choose_encoder_inputs(engine, draft, state, hit.num_computed, num_tokens)
        num_tokens = choice.num_tokens
    if num_tokens == 0:
        return False
    if not _fits(engine, state, hit, num_tokens):
        if state.media_ends and engine.behaviour.gives_back():
            engine.encoder_cache.release_all(state.request_id, state.request.mm_features)
        return False
    _place(engine, draft, state, hit, num_tokens)
    if choice is not None:
        take_encoder_inputs(engine, draft, state, choice)
    return True


def _fits(engine: EngineState, state: RequestState, hit: PrefixHit, num_tokens: int) -> bool:
    """Whether the free blocks suffice, of which found but idle ones are a part."""
    to_hold = state.num_tokens if engine.config.scheduler_reserve_full_isl else 0
    to_hold = max(to_hold, hit.num_computed + num_tokens)
    num_new = engine.blocks_for(to_hold) - len(hit.blocks)
    free = engine.pool.num_free
    return num_new <= free and num_new + engine.pool.num_idle(hit.blocks) <= free


def _place(engine: EngineState, draft: StepDraft, state: RequestState, hit: PrefixHit, num_tokens: int) -> None:
    pool = engine.pool
    pool.hold(hit.blocks)
    end = hit.num_computed + num_tokens
    state.blocks = hit.blocks + pool.take(engine.blocks_for(end) - len(hit.blocks))
    state.num_published = len(hit.blocks)
    engine.publish(state, end)
    engine.waiting.pop()
    engine.running.append(state)
    (draft.resumed if state.status is Status.PREEMPTED else draft.admitted).append(state)
    draft.hits[state.request_id] = hit.num_local
    draft.give(state, num_tokens)
    state.status = Status.RUNNING
    state.num_computed = hit.num_computed
    state.num_remote = 0
