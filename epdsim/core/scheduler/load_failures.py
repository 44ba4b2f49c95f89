"""KV cache that could not be loaded: which requests rely on it, what they compute again, and what nobody may find.

A failure is known with the output of the step that it befell. By then the step has computed on content that is not there, later
steps may be under way (async scheduling), and other requests may hold the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from epdsim.core.plan import StepPlan, TransferReport
from epdsim.core.rules import Rule
from epdsim.core.scheduler.engine import EngineState
from epdsim.core.scheduler.loads import loading
from epdsim.core.scheduler.state import RequestState, Status
from epdsim.core.scheduler.transfers import Transfers


class Rewind(NamedTuple):
    """A request that relied on blocks that are not there.

    Attributes:
        state: The request; its count of computed tokens is set back.
        kept: Leading blocks that it keeps; None when it relies on others to compute what it lacks.
    """

    state: RequestState
    kept: int | None


def rewind_all(engine: EngineState, invalid: Collection[int], _computing: Mapping[str, int]) -> list[Rewind]:
    """Send every request that holds an invalid block back to before the first one; its output under way is void.

    Args:
        engine: Loading and running requests are looked at.
        invalid: Blocks that could not be loaded.
        _computing: Tokens by request of the step that reports it.
    """
    rewinds: list[Rewind] = []
    size = engine.config.block_size
    for state in (*loading(engine), *engine.running):
        held = state.blocks[: engine.blocks_for(state.num_computed)]
        kept = next((index for index, block in enumerate(held) if block in invalid), None)
        if kept is None:
            continue
        state.num_computed = kept * size
        state.num_published = min(state.num_published, kept)
        state.publish_at = (state.num_published + 1) * size
        state.num_stale, state.drops_stale, state.num_placeholders = state.num_in_flight, True, 0
        state.num_drafts, state.is_prefill = 0, True  # what was drafted behind void output is void
        rewinds.append(Rewind(state, kept))
    return rewinds


def rewind_first_owners(engine: EngineState, invalid: Collection[int], computing: Mapping[str, int]) -> list[Rewind]:
    """Send back only the first request that holds a block, and let all output under way count: vLLM 0.32.

    Others that hold it keep what they had before the step, as if the first one were faster; with steps under way even that is
    counted wrongly, since they include tokens that the reporting step did not compute.
    """
    before = _rewind_owners(engine, loading(engine), invalid, computing)
    return [*before, *_rewind_owners(engine, engine.running, invalid, computing)]


def _rewind_owners(
    engine: EngineState, states: Collection[RequestState], invalid: Collection[int], computing: Mapping[str, int]
) -> list[Rewind]:
    rewinds: list[Rewind] = []
    owned: set[int] = set()
    for state in states:
        num_before = state.num_computed - computing.get(state.request_id, 0)
        held = state.blocks[: engine.blocks_for(num_before)]
        bad = [index for index, block in enumerate(held) if block in invalid]
        if not bad:
            continue
        kept = next((index for index in bad if held[index] not in owned), None)
        owned.update(held[index] for index in bad)
        state.num_computed = num_before if kept is None else kept * engine.config.block_size
        rewinds.append(Rewind(state, kept))
    return rewinds


def hide_unloaded(engine: EngineState, invalid: Collection[int], _rewinds: Sequence[Rewind]) -> None:
    """Let nobody find a block that was not loaded, nor one that may have been computed on top of it."""
    pool = engine.pool
    is_beyond = engine.table.beyond({pool.key_of(block) for block in invalid} - {0})
    for block in range(1, pool.num_blocks):
        if pool.key_of(block) and (block in invalid or is_beyond(pool.key_of(block))):
            pool.hide(block)


def hide_owned(engine: EngineState, _invalid: Collection[int], rewinds: Sequence[Rewind]) -> None:
    """Hide the first owners' blocks when they fail; leave all findable when they compute them again: vLLM 0.32."""
    assert engine.transfers is not None, "only a connector loads"
    if engine.transfers.recomputes:
        return
    for state, kept in rewinds:
        # Blocks of a load between steps cannot be found yet.
        if kept is not None and state.status is Status.RUNNING:
            for block in state.blocks[kept:]:
                engine.pool.hide(block)


def give_up_entries(engine: EngineState, state: RequestState) -> None:
    """Give up the encoder-cache entries of a request that is sent back: those of later items take room that earlier ones need."""
    engine.encoder_cache.release_all(state.request_id, state.features)


def keep_entries(_engine: EngineState, _state: RequestState) -> None:
    """Keep them: vLLM 0.32."""


REWIND = Rule(
    "scheduler.rewind",
    "A request that holds a block whose load failed computes it again, and no output counts that was computed on it.",
    source="RECOMP-EQ and LIVE-PROG on vLLM 0.32.0; no public report known",
    ideal=rewind_all,
)
UNLOADED: Rule[Callable[[EngineState, Collection[int], Sequence[Rewind]], None]] = Rule(
    "scheduler.unloaded",
    "A block whose load failed, and what was computed on it, cannot be found.",
    source="KV content on schedules of vLLM 0.32.0; no public report known",
    ideal=hide_unloaded,
)
REWOUND_ENTRIES = Rule(
    "scheduler.rewound_entries",
    "A request that a failed load sends back gives up its encoder-cache entries.",
    source="LIVE-PROG on vLLM 0.32.0, where an entry of a later item can keep an earlier one out; no public report known",
    ideal=give_up_entries,
)


def take_failures(engine: EngineState, transfers: Transfers, plan: StepPlan, report: TransferReport) -> Collection[str]:
    """Take note of loads that failed; ids whose output of this step is void, or who fail, by the policy."""
    affected: dict[str, None] = {}
    for request_id in report.failed:
        state = engine.requests.get(request_id)
        if state is not None and state.status is Status.LOADING:
            _lose(transfers, state, affected, num_computed=0)
    if report.invalid_blocks:
        invalid = frozenset(report.invalid_blocks)
        rewinds = engine.dialect[REWIND](engine, invalid, plan.num_scheduled_tokens)
        engine.dialect[UNLOADED](engine, invalid, rewinds)
        for state, _ in rewinds:
            if state.status is Status.LOADING:
                _lose(transfers, state, affected, num_computed=state.num_computed)
                continue
            affected[state.request_id] = None
            if state.features:
                engine.dialect[REWOUND_ENTRIES](engine, state)
                transfers.rewound[state.request_id] = None
    return affected


def _lose(transfers: Transfers, state: RequestState, affected: dict[str, None], *, num_computed: int) -> None:
    """A load between steps keeps its first `num_computed` tokens."""
    if transfers.recomputes:
        state.num_computed = num_computed
        transfers.failed[state.request_id] = None
    else:
        affected[state.request_id] = None
