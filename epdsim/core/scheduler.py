"""The scheduler of one engine: which tokens of which requests a step computes, on which KV blocks, with which encoder runs.

It takes the decisions of vLLM's v1 scheduler, step by step and block by block. A plan costs no time; the caller says what a step yields by
`update_from_output`. With async scheduling a caller plans step n + 1 before it hands in the output of step n.

    scheduler = Scheduler(SchedulerConfig())
    scheduler.add_request(Request("r0", RunPrompt([TokenRun("text", 0, 100)]), max_tokens=2))
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        outcome = scheduler.update_from_output(plan)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from epdsim.core.block_keys import RequestKeys
from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.core.plan import CachedRequestData, NewRequestData, StepPlan
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler_config import SchedulerConfig
from epdsim.core.scheduler_engine import EngineState, StepDraft
from epdsim.core.scheduler_fingerprint import fingerprint
from epdsim.core.scheduler_running import schedule_running
from epdsim.core.scheduler_state import RequestState
from epdsim.core.scheduler_update import StepOutcome, finish, update
from epdsim.core.scheduler_waiting import schedule_waiting
from epdsim.core.strip import strip_covered

__all__ = ["Scheduler", "StepOutcome"]


class Scheduler:
    """The scheduler of one engine.

    Args:
        config: Its settings.
        dialect: How rules that releases change behave; the ideal by default.
    """

    __slots__ = ("_engine", "config", "dialect")

    def __init__(self, config: SchedulerConfig, dialect: Dialect = IDEAL) -> None:
        self.config = config
        self.dialect = dialect
        self._engine = EngineState(config, dialect)

    @property
    def has_unfinished(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._engine.requests)

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return len(self._engine.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted ones among them."""
        return len(self._engine.waiting)

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._engine.pool.num_free

    @property
    def running(self) -> list[str]:
        """Ids in scheduling order."""
        return [state.request_id for state in self._engine.running]

    @property
    def waiting(self) -> list[str]:
        """Ids in order of admission."""
        return [state.request_id for state in self._engine.waiting]

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InputError: The id is in use, or no schedule could ever finish the request (LIVE-ADMIT).
        """
        engine = self._engine
        if request.request_id in engine.requests:
            raise InputError(f"request {request.request_id!r}", "a request of that id is alive", "use another id")
        embeds = tuple(engine.behaviour.item_slots(feature.position) for feature in request.mm_features)
        _check_admissible(engine, request, embeds)
        end_tokens = min(request.prompt.num_tokens + request.max_tokens, self.config.max_model_len)
        keys = RequestKeys(engine.table, request, self.config.block_size, self.dialect)
        state = RequestState(request, keys, end_tokens, embeds)
        engine.requests[request.request_id] = state
        engine.waiting.add(state)

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests in the given order, at any time; ids that are not alive are passed over."""
        for request_id in request_ids:
            state = self._engine.requests.get(request_id)
            if state is not None:
                finish(self._engine, state)

    def schedule(self) -> StepPlan:
        """Plan the next step."""
        engine = self._engine
        draft = StepDraft(engine)
        schedule_running(engine, draft)
        schedule_waiting(engine, draft)
        plan = _plan(engine, draft)
        engine.step += 1
        engine.finished, engine.preempted, engine.ec_loads = [], [], {}
        return plan

    def update_from_output(self, plan: StepPlan, sampled: Mapping[str, Sequence[int]] | None = None) -> StepOutcome:
        """Hand in what a step yielded.

        Args:
            plan: The step; each plan is handed in once, in order.
            sampled: Output tokens by request; None for one token of each request that reached the end of its known tokens.
        """
        return update(self._engine, plan, sampled)

    def reset_prefix_cache(self) -> bool:
        """Forget all known prefixes; False and nothing done while a block is in use."""
        return self._engine.pool.reset()

    def reset_encoder_cache(self) -> None:
        """Forget all embeddings."""
        self._engine.encoder_cache.reset()

    def clone(self) -> Scheduler:
        """An independent copy: what happens to one does not show in the other."""
        other = object.__new__(Scheduler)
        other.config, other.dialect, other._engine = self.config, self.dialect, self._engine.clone()
        return other

    def fingerprint(self) -> str:
        """Digest of all that decides what the scheduler does next, the same under any renaming of blocks and of steps."""
        return fingerprint(self._engine)


def _plan(engine: EngineState, draft: StepDraft) -> StepPlan:
    """The plan of a draft; moves the requests' counters past it."""
    is_v2 = engine.config.model_runner == "v2"
    new = [_new_data(engine, draft, state) for state in draft.admitted + (draft.resumed if is_v2 else [])]
    cached = [
        CachedRequestData(state.request_id, state.num_computed, draft.new_blocks.get(state.request_id))
        for state in draft.running
    ]
    if not is_v2:
        cached += [
            CachedRequestData(state.request_id, state.num_computed, list(state.blocks), resumed=True)
            for state in draft.resumed
        ]
    return StepPlan(
        step=engine.step,
        num_scheduled_tokens=draft.num_scheduled,
        scheduled_encoder_inputs=draft.encoder_inputs,
        new=new,
        cached=cached,
        preempted=sorted(engine.preempted),
        finished=sorted(engine.finished),
        free_encoder_mm_hashes=engine.encoder_cache.take_freed(),
        ec_loads=list(engine.ec_loads),
        samples=_advance(engine, draft),
    )


def _advance(engine: EngineState, draft: StepDraft) -> list[str]:
    """Count the scheduled tokens as computed; the ids that reach the end of their known tokens and so yield one."""
    samples: list[str] = []
    is_async = engine.config.async_scheduling
    for request_id, num_tokens in draft.num_scheduled.items():
        state = engine.requests[request_id]
        state.num_computed += num_tokens
        state.num_in_flight += num_tokens
        if state.num_computed >= state.num_tokens + state.num_placeholders:
            samples.append(request_id)
            state.num_placeholders += is_async
    return samples


def _new_data(engine: EngineState, draft: StepDraft, state: RequestState) -> NewRequestData:
    return NewRequestData(
        request_id=state.request_id,
        num_computed_tokens=state.num_computed,
        block_ids=list(state.blocks),
        mm_features=_stripped(engine, state.request.mm_features, state.num_computed),
        num_prompt_tokens=state.num_tokens if engine.config.model_runner == "v2" else state.request.prompt.num_tokens,
        num_cached_tokens=draft.hits[state.request_id],
    )


def _stripped(engine: EngineState, features: Sequence[MediaFeature], num_computed: int) -> Sequence[MediaFeature]:
    config = engine.config
    if config.strip == "off":
        return features
    return strip_covered(
        features, num_computed, uses_mrope=config.uses_mrope, uses_xdrope=config.uses_xdrope, dialect=engine.dialect
    )


def _check_admissible(engine: EngineState, request: Request, embeds: Sequence[int]) -> None:
    config, name = engine.config, f"request {request.request_id!r}"
    num_tokens = request.prompt.num_tokens + request.max_tokens
    if request.prompt.num_tokens < 1 or request.max_tokens < 1:
        raise InputError(name, "it needs at least one prompt token and one output token")
    if num_tokens > config.max_model_len:
        raise InputError(
            f"{name} of {num_tokens} tokens",
            f"max_model_len is {config.max_model_len}",
            "raise it or shorten the request",
        )
    if engine.blocks_for(num_tokens - 1) > config.num_gpu_blocks - 1:
        raise InputError(
            f"{name} of {num_tokens} tokens",
            f"the pool has {config.num_gpu_blocks - 1} blocks of {config.block_size}",
            "raise num_gpu_blocks",
        )
    room = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    if embeds and max(embeds) > room:
        raise InputError(
            f"{name} with an item of {max(embeds)} embeddings", f"encoder cache and budget allow {room}", "raise them"
        )
