"""The scheduler's memory, and the draft of the step that is being planned.

`EngineState` is all that lasts from step to step; `StepDraft` holds what one step has left to give and what it has given so
far. The phases (running, waiting, preemption, encoder, update) are functions over these two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from typing import Final

from epdsim.core.caches.encoder_cache import EncoderCache
from epdsim.core.caches.encoder_decoder_cache import EncoderDecoderCache
from epdsim.core.ec.connector import EcConnector
from epdsim.core.kv.block_keys import BlockKeyTable
from epdsim.core.kv.blocks import BlockPool
from epdsim.core.plan import CachedRequestData, KvLoad
from epdsim.core.rules import Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.queues import waiting_queue
from epdsim.core.scheduler.rules import Behaviour
from epdsim.core.scheduler.state import RequestState
from epdsim.core.scheduler.transfers import Transfers

NEVER: Final = sys.maxsize
"""More tokens than any request has."""


class PauseState(Enum):
    """What a paused scheduler still does; output of steps under way is taken in any case."""

    UNPAUSED = "unpaused"
    PAUSED_NEW = "no request is admitted but those that hold KV blocks"
    PAUSED_ALL = "nothing is scheduled"


class EngineState:
    """All that a scheduler remembers between steps.

    Attributes:
        step: Number of the next step.
        requests: Live requests by id.
        running: In scheduling order.
        waiting: Without KV blocks, by policy.
        holding: Who waits with KV blocks, and is admitted before the others: sessions between two turns, requests whose KV cache is
            loaded or has been.
        num_streaming: Sessions that wait for input; each takes one of `max_num_seqs` places.
        pause_state: What is held back.
        pool: KV blocks.
        drafter: What the drafter asks; all zero without one.
        table: Block keys of all prefixes that are in the pool or in a live request.
        encoder_cache: Books of the encoder cache.
        encodes_in_parts: Whether prompts are cut even with chunked prefill off, as in an engine that only encodes.
        finished: Ids that ended since the last step.
        preempted: Ids preempted since the last step.
        ec: The engine's side of the EC connector; None without one.
        refused: Ids to fail at the next update, with the reason.
        transfers: Books of the KV connector; None without one.
    """

    __slots__ = (
        "behaviour",
        "config",
        "dialect",
        "drafter",
        "ec",
        "encoder_cache",
        "encodes_in_parts",
        "finished",
        "holding",
        "num_streaming",
        "pause_state",
        "pool",
        "preempted",
        "refused",
        "requests",
        "running",
        "step",
        "table",
        "transfers",
        "waiting",
    )

    def __init__(self, config: SchedulerConfig, dialect: Dialect, ec: EcConnector | None) -> None:
        self.config = config
        self.dialect = dialect
        self.drafter = config.drafter
        self.behaviour = Behaviour(dialect)
        self.ec = ec
        self.encodes_in_parts = config.mm_encoder_only and self.behaviour.encodes_in_parts
        self.step = 0
        self.requests: dict[str, RequestState] = {}
        self.running: list[RequestState] = []
        self.waiting = waiting_queue(config.policy)
        self.holding = waiting_queue(config.policy)
        self.num_streaming = 0
        self.pause_state = PauseState.UNPAUSED
        self.pool = BlockPool(config.num_gpu_blocks, enable_caching=config.enable_prefix_caching, dialect=dialect)
        self.table = BlockKeyTable(config.num_gpu_blocks)
        make_cache = EncoderDecoderCache if config.is_encoder_decoder else EncoderCache
        self.encoder_cache: EncoderCache = make_cache(config.encoder_cache_size, dialect)
        self.finished: list[str] = []
        self.preempted: list[str] = []
        self.refused: dict[str, str] = {}
        self.transfers = None if config.kv_role == "none" else Transfers(config)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens; none in an engine that only encodes."""
        return 0 if self.config.mm_encoder_only else -(-num_tokens // self.config.block_size)

    def with_lookahead(self, end: int) -> int:
        """Tokens that need a KV slot when a step computes up to `end`, with those that the drafter writes."""
        return min(end + self.drafter.num_lookahead, self.config.max_model_len)

    def most_slots(self, num_known: int) -> int:
        """KV slots that a request takes at most whose last `num_known` tokens are computed.

        Drafts past the end are computed, and the drafter writes further; with async scheduling a step may follow whose predecessor
        brings the last token with all of its drafts.
        """
        return self.with_lookahead(num_known + self.drafter.num_drafts * (2 if self.config.async_scheduling else 1))

    def fits(self, state: RequestState, hit: list[int], end: int, num_reserved: int = 0) -> bool:
        """Whether the free blocks suffice for a waiting request's first `end` tokens.

        Args:
            state: What it holds already counts.
            hit: Found blocks; those that nobody holds are a part of the free ones.
            end: Tokens.
            num_reserved: Free blocks that must be left.
        """
        free, num_held = self.pool.num_free, len(state.blocks) + len(hit) - state.num_cross_blocks
        num_idle = self.pool.num_idle(hit)
        if max(0, self.blocks_for(end) - num_held) + num_idle > free - num_reserved:
            return False
        if not self.config.scheduler_reserve_full_isl:
            return True
        return max(0, self.blocks_for(state.num_tokens) - num_held) + num_idle <= free

    def adopt(self, state: RequestState, hit: list[int]) -> None:
        """Begin a request's block table with found blocks; one whose whole short prompt was loaded has a table already."""
        if not state.blocks:
            self.pool.hold(hit)
            state.blocks, state.num_published = list(hit), len(hit)

    def extend(self, state: RequestState, end: int) -> list[int]:
        """Give the request blocks for its first `end` tokens; the caller has seen that the pool has them."""
        added = self.pool.take(self.blocks_for(end) - len(state.blocks))
        state.blocks += added
        state.capacity = NEVER if self.config.mm_encoder_only else len(state.blocks) * self.config.block_size
        if len(state.cross_blocks) < state.num_cross_blocks:
            state.cross_blocks = tuple(self.pool.take(state.num_cross_blocks))
        return added

    def publish(self, state: RequestState, num_tokens: int) -> None:
        """Make the request's full blocks within its first `num_tokens` tokens, which are known and computed, findable."""
        if not self.pool.enable_caching:
            state.publish_at = NEVER
            return
        if self.drafter.num_prefill_lookahead > 1:
            num_tokens = self.behaviour.settled_tokens(num_tokens, self.drafter.num_prefill_lookahead)
        first, num_full = state.num_published, num_tokens // self.config.block_size
        if num_full <= first:
            return
        keys = state.keys.upto(num_full)
        self.pool.publish(state.blocks[first:num_full], keys[first:num_full])
        state.num_published = num_full
        state.publish_at = (num_full + 1) * self.config.block_size

    def free_blocks(self, state: RequestState) -> None:
        """Give up the request's block table, once no step under way may write it where that matters."""
        if self.transfers is not None and not self.transfers.is_settled(state):
            self.transfers.defer(state.blocks)
            state.blocks = []
        self.release_blocks(state)

    def release_blocks(self, state: RequestState) -> None:
        """Give up the request's block table at once."""
        self.pool.release(state.blocks)
        state.blocks = []
        if state.cross_blocks:
            self.pool.release(list(state.cross_blocks))
            state.cross_blocks = ()
        state.capacity = state.num_published = state.publish_at = 0

    def release_past(self, state: RequestState, num_tokens: int) -> None:
        """Give up the encoder-cache entries of all items that end within the request's first `num_tokens` tokens."""
        past = self.encoder_cache.release_past(state.request_id, state.features, num_tokens)
        if self.ec is not None:
            for index in past:
                self.ec.released(state.request, index)

    def encoder_progress(self, state: RequestState) -> int:
        """Tokens computed as far as entries of the encoder cache are concerned."""
        if self.config.is_encoder_decoder:
            return state.num_computed  # the first step is over, whatever becomes of those under way
        progress = self.behaviour.confirmed(state.num_computed, state.num_placeholders)
        return self.behaviour.passed_items(progress, self.drafter.num_prefill_lookahead)

    def forget_unused_keys(self) -> None:
        """Drop block keys that neither the pool nor a live request knows, once there are many of them."""
        if self.table.is_crowded:
            self.table.keep_only(chain(self.pool.keys(), *(state.keys.known() for state in self.requests.values())))

    def clone(self) -> EngineState:
        """An independent copy."""
        other = object.__new__(EngineState)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.pool, other.table, other.encoder_cache = self.pool.clone(), self.table.clone(), self.encoder_cache.clone()
        other.requests = {name: state.clone(state.keys.clone(other.table)) for name, state in self.requests.items()}
        other.running = [other.requests[state.request_id] for state in self.running]
        other.waiting, other.holding = self.waiting.copy(other.requests), self.holding.copy(other.requests)
        other.finished, other.preempted, other.refused = list(self.finished), list(self.preempted), dict(self.refused)
        other.ec = None if self.ec is None else self.ec.clone()
        if self.transfers is not None:
            other.transfers = self.transfers.clone(other.requests, other.table)
        return other


class StepDraft:
    """What a step has left to give, and what it has given.

    Attributes:
        tokens: Tokens left of `max_num_batched_tokens` for the next request, the drafter's own slots taken off.
        encoder_embeds: Embeddings left of `max_num_encoder_input_tokens`.
        long_prefill: Tokens that one request may get; 0 for no limit.
        num_scheduled: Tokens given, by request, in order.
        num_drafts: Draft tokens among them.
        has_prefill: Whether a running request that goes on was in the middle of its prompt; followed only with a drafter.
        encoder_inputs: Items to encode, by request.
        cached: Rows of running requests that go on.
        samples: Ids that reach the end of their known tokens.
        admitted: Requests admitted for the first time, with the tokens found in the prefix cache.
        resumed: Requests admitted again after a preemption, likewise.
        preempts: Whether a request was preempted in this step, so that nobody is admitted.
        holding_aside: Who holds blocks and was passed over: for want of input, of KV cache that is on its way, of own late output.
        kv_loads: Loads of KV cache from outside.
    """

    __slots__ = (
        "admitted",
        "cached",
        "encoder_embeds",
        "encoder_inputs",
        "has_prefill",
        "holding_aside",
        "is_async",
        "kv_loads",
        "long_prefill",
        "max_drafts",
        "num_drafts",
        "num_scheduled",
        "preempts",
        "resumed",
        "samples",
        "slots",
        "tokens",
    )

    def __init__(self, engine: EngineState) -> None:
        config = engine.config
        self.max_drafts, self.slots = engine.drafter.num_drafts, engine.drafter.num_slots
        paused = engine.pause_state is PauseState.PAUSED_ALL
        self.tokens = 0 if paused else config.max_num_batched_tokens - self.slots
        self.encoder_embeds = config.max_num_encoder_input_tokens
        self.is_async = config.async_scheduling and (not config.mm_encoder_only or engine.behaviour.decodes_encoded)
        self.long_prefill = 0
        if config.long_prefill_token_threshold:
            num_live = len(engine.running) + len(engine.waiting.members) + len(engine.holding.members)
            self.long_prefill = engine.behaviour.long_prefill(config.long_prefill_token_threshold, num_live)
        self.num_scheduled: dict[str, int] = {}
        self.num_drafts: dict[str, int] = {}
        self.has_prefill = False
        self.encoder_inputs: dict[str, list[int]] = {}
        self.cached: list[CachedRequestData] = []
        self.samples: list[str] = []
        self.kv_loads: list[KvLoad] = []
        self.admitted: list[tuple[RequestState, int]] = []
        self.resumed: list[tuple[RequestState, int]] = []
        self.preempts = False
        self.holding_aside: list[RequestState] = []

    def limited(self, num_tokens: int) -> int:
        """As many of the wanted tokens as one request may get now."""
        if 0 < self.long_prefill < num_tokens:
            num_tokens = self.long_prefill
        return min(num_tokens, self.tokens)

    def spend(self, state: RequestState, num_tokens: int) -> None:
        """Give tokens to a request and count them as computed."""
        request_id = state.request_id
        self.num_scheduled[request_id] = num_tokens
        self.tokens -= num_tokens + self.slots
        state.num_in_flight += num_tokens
        state.num_computed = num_computed = state.num_computed + num_tokens
        num_beyond = num_computed - state.num_tokens - state.num_placeholders
        if num_beyond >= 0:
            self.samples.append(request_id)
            if self.is_async:
                state.num_placeholders += 1
        if self.max_drafts:
            self._spend_drafts(state, num_beyond)

    def _spend_drafts(self, state: RequestState, num_beyond: int) -> None:
        """Take the drafts among the tokens just given, which are those beyond the known ones, off the request."""
        state.is_prefill = num_beyond < 0
        if state.num_drafts and num_beyond > 0:
            self.num_drafts[state.request_id] = num_beyond
        state.num_drafts = 0
        if self.is_async and num_beyond >= 0:
            # What the step yields and proposes is not known when the next one is planned: all of it, it is supposed.
            state.num_placeholders += num_beyond
            state.num_drafts = self.max_drafts

    def take_back(self, victim: RequestState) -> Sequence[int]:
        """Undo what a running request, preempted after it was scheduled in this step, got; the items it was to encode."""
        request_id = victim.request_id
        num_tokens = self.num_scheduled.pop(request_id)
        self.tokens += num_tokens + self.slots
        self.num_drafts.pop(request_id, None)
        victim.num_in_flight -= num_tokens
        self.cached = [row for row in self.cached if row.request_id != request_id]
        self.samples = [name for name in self.samples if name != request_id]
        withdrawn = self.encoder_inputs.pop(request_id, ())
        self.encoder_embeds += sum(victim.media_embeds[index] for index in withdrawn)
        return withdrawn
