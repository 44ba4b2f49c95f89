"""The scheduler's memory, and the draft of the step that is being planned.

`EngineState` is all that lasts from step to step; `StepDraft` holds what one step has left to give and what it has given so far. The
phases (running, waiting, preemption, encoder, update) are functions over these two.
"""

from __future__ import annotations

from collections.abc import Callable

from epdsim.core.block_keys import BlockKeyTable
from epdsim.core.encoder_cache import ITEM_SLOTS, MISMATCH, EncoderCache
from epdsim.core.kv_blocks import HIT_LIMIT, BlockPool
from epdsim.core.rules import Dialect, Rule
from epdsim.core.scheduler_config import SchedulerConfig
from epdsim.core.scheduler_queues import waiting_queue
from epdsim.core.scheduler_state import RequestState


def limit_among_others(threshold: int, num_live: int) -> int:
    """Tokens that one request may get in this step; 0 for no limit."""
    return threshold if num_live > 1 else 0


def splits_item(num_computed: int, end: int, item_start: int, item_end: int) -> bool:
    """Whether a chunk `[num_computed, end)` that touches the item would leave a part of it for a later step."""
    return end < item_end


def confirmed_tokens(num_computed: int, num_placeholders: int) -> int:
    """Tokens that no roll-back can take away."""
    return num_computed - num_placeholders


def least_urgent(running: list[RequestState], policy: str) -> int:
    """Index of the request to preempt: the last to come, or under priorities the least urgent and among those the last to arrive."""
    if policy != "priority":
        return len(running) - 1
    worst = max((state.request.priority, state.request.arrival_time) for state in running)
    return next(i for i, state in enumerate(running) if (state.request.priority, state.request.arrival_time) == worst)


def gives_back() -> bool:
    """Whether a request that could not be admitted gives its encoder-cache references back."""
    return True


LONG_PREFILL = Rule(
    "scheduler.long_prefill",
    "The long-prefill threshold binds only while another request is alive.",
    source="vLLM 0.31 and later; up to 0.30 it always binds",
    ideal=limit_among_others,
)
CHUNK_WHOLE = Rule(
    "scheduler.chunk_whole",
    "With chunked media input off, no step ends inside a media item.",
    source="vLLM issue 52306",
    ideal=splits_item,
)
CONFIRMED = Rule(
    "scheduler.confirmed",
    "An encoder-cache entry is given up by confirmed progress, not by what steps under way may still lose.",
    source="vLLM PR 45347",
    ideal=confirmed_tokens,
)
VICTIM = Rule(
    "scheduler.victim",
    "Preempted is the last of the running requests, under priorities the least urgent.",
    source="vLLM 0.32",
    ideal=least_urgent,
)
GIVE_BACK = Rule(
    "scheduler.give_back",
    "A request that gets encoder-cache references but no KV blocks gives them back.",
    source="vLLM PR 31857",
    ideal=gives_back,
)


class Behaviour:
    """The rules of a dialect that every step asks, looked up once."""

    __slots__ = (
        "confirmed",
        "differs",
        "gives_back",
        "hit_limit",
        "item_slots",
        "long_prefill",
        "splits_item",
        "victim",
    )

    def __init__(self, dialect: Dialect) -> None:
        self.confirmed: Callable[[int, int], int] = dialect[CONFIRMED]
        self.differs: Callable[[int, int], bool] = dialect[MISMATCH]
        self.gives_back = dialect[GIVE_BACK]
        self.hit_limit: Callable[[int], int] = dialect[HIT_LIMIT]
        self.item_slots = dialect[ITEM_SLOTS]
        self.long_prefill: Callable[[int, int], int] = dialect[LONG_PREFILL]
        self.splits_item: Callable[[int, int, int, int], bool] = dialect[CHUNK_WHOLE]
        self.victim: Callable[[list[RequestState], str], int] = dialect[VICTIM]


class EngineState:
    """All that a scheduler remembers between steps.

    Attributes:
        step: Number of the next step.
        requests: Live requests by id.
        running: In scheduling order.
        waiting: By policy.
        pool: KV blocks.
        table: Block keys of all prefixes that are in the pool or in a live request.
        encoder_cache: Books of the encoder cache.
        finished: Ids that ended since the last step.
        preempted: Ids preempted since the last step.
        ec_loads: Identifiers to load from the EC store with the next step.
        refused: Ids to fail at the next update, because a cached entry does not fit their item.
    """

    __slots__ = (
        "behaviour",
        "config",
        "dialect",
        "ec_loads",
        "encoder_cache",
        "finished",
        "pool",
        "preempted",
        "refused",
        "requests",
        "running",
        "step",
        "table",
        "waiting",
    )

    def __init__(self, config: SchedulerConfig, dialect: Dialect) -> None:
        self.config = config
        self.dialect = dialect
        self.behaviour = Behaviour(dialect)
        self.step = 0
        self.requests: dict[str, RequestState] = {}
        self.running: list[RequestState] = []
        self.waiting = waiting_queue(config.policy)
        self.pool = BlockPool(config.num_gpu_blocks, enable_caching=config.enable_prefix_caching)
        self.table = BlockKeyTable()
        self.encoder_cache = EncoderCache(config.encoder_cache_size, dialect)
        self.finished: list[str] = []
        self.preempted: list[str] = []
        self.ec_loads: dict[str, None] = {}
        self.refused: list[str] = []

    def clone(self) -> EngineState:
        """An independent copy."""
        other = object.__new__(EngineState)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.pool, other.table, other.encoder_cache = self.pool.clone(), self.table.clone(), self.encoder_cache.clone()
        other.requests = {name: state.clone(state.keys.clone(other.table)) for name, state in self.requests.items()}
        other.running = [other.requests[state.request_id] for state in self.running]
        other.waiting = waiting_queue(self.config.policy)
        for state in self.waiting:
            other.waiting.add(other.requests[state.request_id])
        other.finished, other.preempted, other.refused = list(self.finished), list(self.preempted), list(self.refused)
        other.ec_loads = dict(self.ec_loads)
        return other

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.config.block_size)

    def publish(self, state: RequestState, num_tokens: int) -> None:
        """Make the request's full blocks within its first `num_tokens` tokens findable."""
        num_full = num_tokens // self.config.block_size
        if num_full <= state.num_published or not self.pool.enable_caching:
            return
        pool, blocks, keys = self.pool, state.blocks, state.keys
        for index in range(state.num_published, num_full):
            pool.publish(blocks[index], keys.key(index))
        state.num_published = num_full

    def free_blocks(self, state: RequestState) -> None:
        """Give up the request's block table."""
        self.pool.release(state.blocks)
        state.blocks = []
        state.num_published = 0


class StepDraft:
    """What a step has left to give, and what it has given.

    Attributes:
        tokens: Tokens left of `max_num_batched_tokens`.
        encoder_embeds: Embeddings left of `max_num_encoder_input_tokens`.
        long_prefill: Tokens that one request may get; 0 for no limit.
        num_scheduled: Tokens given, by request, in order.
        encoder_inputs: Items to encode, by request.
        new_blocks: Blocks added, by running request.
        running: Running requests that got tokens.
        admitted: Requests admitted for the first time.
        resumed: Requests admitted again after a preemption.
        hits: Tokens found in the prefix cache, by admission.
        preempts: Whether a request was preempted in this step, so that nobody is admitted.
    """

    __slots__ = (
        "admitted",
        "encoder_embeds",
        "encoder_inputs",
        "hits",
        "long_prefill",
        "new_blocks",
        "num_scheduled",
        "preempts",
        "resumed",
        "running",
        "tokens",
    )

    def __init__(self, engine: EngineState) -> None:
        config = engine.config
        self.tokens = config.max_num_batched_tokens
        self.encoder_embeds = config.max_num_encoder_input_tokens
        self.long_prefill = 0
        if config.long_prefill_token_threshold:
            num_live = len(engine.running) + len(engine.waiting)
            self.long_prefill = engine.behaviour.long_prefill(config.long_prefill_token_threshold, num_live)
        self.num_scheduled: dict[str, int] = {}
        self.encoder_inputs: dict[str, list[int]] = {}
        self.new_blocks: dict[str, list[int]] = {}
        self.running: list[RequestState] = []
        self.admitted: list[RequestState] = []
        self.resumed: list[RequestState] = []
        self.hits: dict[str, int] = {}
        self.preempts = False

    def give(self, state: RequestState, num_tokens: int) -> None:
        """Spend tokens on a request."""
        self.num_scheduled[state.request_id] = num_tokens
        self.tokens -= num_tokens

    def take_back(self, state: RequestState) -> None:
        """Undo what a running request, preempted after it was scheduled in this step, got."""
        if state.request_id not in self.num_scheduled:
            return
        self.running.remove(state)
        self.tokens += self.num_scheduled.pop(state.request_id)
        self.new_blocks.pop(state.request_id, None)
        for index in self.encoder_inputs.pop(state.request_id, ()):
            self.encoder_embeds += state.media_embeds[index]
