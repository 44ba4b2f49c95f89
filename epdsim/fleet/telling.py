"""What an engine of a fleet tells of its decisions, in the words in which every engine does (`epdsim.events.engine`)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from epdsim.core.plan import CachedRequestData, NewRequestData, StepPlan
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.strip import payload_kind
from epdsim.events import (
    Admitted,
    EngineStarted,
    Event,
    FleetStarted,
    ItemInfo,
    PayloadsSent,
    Preempted,
    RequestQueued,
    Sink,
    StepPlanned,
)
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.faults import NO_FAULTS

NAME: Final = "orchestrator"
"""Of the orchestrator, for events."""


def to_all(sinks: Sequence[Sink]) -> Sink:
    """A sink that hands an event to each of some."""
    if len(sinks) == 1:
        return sinks[0]

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit


def fleet_started(config: FleetConfig, prefix: str) -> FleetStarted:
    """What a fleet consists of.

    Args:
        config: The fleet.
        prefix: With which names of the engines that compute prompts begin.
    """
    stage = "aggregated" if prefix == "engine" else "prefill"
    told = {stage: (prefix, config.prefill), "encode": ("encode", config.encode), "decode": ("decode", config.decode)}
    pools = {leg: _names(name, pool.count) for leg, (name, pool) in told.items() if pool is not None}
    routers = {leg: pool.router for leg, (_, pool) in told.items() if pool is not None and pool.router is not None}
    max_batch_items = config.encode.max_batch_items if config.encode is not None else 0
    faults = config.faults or NO_FAULTS
    patience = faults.detect_ms, faults.give_up_ms + config.ec.patience_ms, faults.slow_until_ms
    return FleetStarted(0.0, "fleet", config.topology, config.router, pools, max_batch_items, routers, *patience)


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{index}" for index in range(count)]


def stride_planned(
    now_ms: float,
    name: str,
    step: int,
    num_steps: int,
    before: Mapping[str, tuple[int, int, Sequence[int]]],
    finished: Sequence[str],
    ended: Container[str],
) -> StepPlanned:
    """Steps that decided nothing, once they are taken: each request computed one token in each of them.

    Args:
        now_ms: When the last of them ends.
        name: Of the engine.
        step: Number of the first.
        num_steps: How many.
        before: By request, computed tokens and length of the block table before them, and the table, which has grown since.
        finished: Ids that ended before them.
        ended: Ids that end with the last of them, and have no table any more.
    """
    computed: dict[str, int] = {}
    blocks: dict[str, Sequence[int]] = {}
    for request_id, (num_computed, num_blocks, table) in before.items():
        computed[request_id] = num_computed
        if len(table) > num_blocks and request_id not in ended:
            blocks[request_id] = table[num_blocks:]
    scheduled = dict.fromkeys(before, num_steps)
    return StepPlanned(
        now_ms,
        name,
        step,
        scheduled,
        num_computed_tokens=computed,
        new_block_ids=blocks,
        finished=finished,
        num_steps=num_steps,
    )


def engine_started(now_ms: float, name: str, config: SchedulerConfig, system: str) -> EngineStarted:
    """The settings of an engine, and what its events do not tell in full."""
    beyond = {
        "drafts": config.speculative_method != "none" or config.mamba_block_aligned_split,
        "cross attention": config.is_encoder_decoder,
        "encoding alone": config.mm_encoder_only,
    }
    return EngineStarted(
        now_ms,
        name,
        system,
        config.block_size,
        config.num_gpu_blocks,
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.encoder_cache_size,
        config.max_num_encoder_input_tokens,
        config.model_runner,
        config.policy,
        config.async_scheduling,
        config.uses_mrope or config.uses_xdrope,
        config.disable_chunked_mm_input,
        config.ec_role,
        [name for name, is_there in beyond.items() if is_there],
        sends_late=config.strip == "deferred",
    )


def request_queued(now_ms: float, name: str, request: Request, num_delivered_tokens: int) -> RequestQueued:
    """A request as an engine gets it; its prompt is told by its length alone."""
    items = [
        ItemInfo(
            one.modality,
            one.identifier,
            one.position.offset,
            one.position.length,
            None if one.position.is_embed is None else list(one.position.is_embed),
            one.data is not None and any(field.keep_on_cpu for field in one.data.fields.values()),
            payload_kind(one.data),
        )
        for one in request.mm_features
    ]
    return RequestQueued(
        now_ms,
        name,
        request.request_id,
        request.prompt.num_tokens,
        request.max_tokens,
        items,
        cache_salt=request.cache_salt,
        adapter=request.adapter,
        num_remote_tokens=request.num_remote_tokens,
        num_delivered_tokens=num_delivered_tokens,
        awaits_kv=request.kv_transfer.loads_async,
    )


def decisions(
    now_ms: float,
    name: str,
    plan: StepPlan,
    requests: Mapping[str, Request],
    known: Container[str],
    *,
    wants_detail: bool,
) -> list[Event]:
    """The decisions of a step.

    Args:
        now_ms: When it is planned.
        name: Of the engine.
        plan: The step.
        requests: Alive in the engine.
        known: Those that were admitted before.
        wants_detail: All of them, or only who is preempted and admitted.
    """
    told: list[Event] = [Preempted(now_ms, name, request_id) for request_id in plan.preempted]
    told += [
        _admitted(now_ms, name, new, requests[new.request_id], resumed=new.request_id in known) for new in plan.new
    ]
    told += [_resumed(now_ms, name, row, requests[row.request_id]) for row in plan.cached if row.resumed]
    if wants_detail:
        told += [
            PayloadsSent(now_ms, name, row.request_id, dict.fromkeys(row.mm_updates, "full"))
            for row in plan.cached
            if row.mm_updates
        ]
        told.append(_planned(now_ms, name, plan))
    return told


def _planned(now_ms: float, name: str, plan: StepPlan) -> StepPlanned:
    computed = {row.request_id: row.num_computed_tokens for row in plan.new}
    blocks: dict[str, Sequence[int]] = {}
    for row in plan.cached:
        computed[row.request_id] = row.num_computed_tokens
        if row.new_block_ids and not row.resumed:
            blocks[row.request_id] = list(row.new_block_ids)
    return StepPlanned(
        now_ms,
        name,
        plan.step,
        plan.num_scheduled_tokens,
        plan.scheduled_encoder_inputs,
        plan.ec_loads,
        plan.free_encoder_mm_hashes,
        computed,
        blocks,
        plan.finished,
    )


def _resumed(now_ms: float, name: str, row: CachedRequestData, request: Request) -> Admitted:
    """An admission after a preemption, where workers keep what they were sent."""
    blocks, length = list(row.new_block_ids or ()), request.prompt.num_tokens
    return Admitted(
        now_ms, name, row.request_id, length, row.num_computed_tokens, 0, (), resumed=True, block_ids=blocks
    )


def _admitted(now_ms: float, name: str, new: NewRequestData, request: Request, *, resumed: bool) -> Admitted:
    """An admission as workers are told of it."""
    return Admitted(
        now_ms,
        name,
        new.request_id,
        request.prompt.num_tokens,
        new.num_computed_tokens,
        request.num_remote_tokens,
        [payload_kind(feature.data) for feature in new.mm_features],
        resumed,
        list(new.block_ids),
    )
