"""The model as the engine of a play: recorded settings and requests in its own terms, its plans in the form of a recording."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from epdsim.core.ec.connector import SharedStore
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import StepPlan, TransferReport
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import EcOffer, KvTransfer, Request, StreamingUpdate
from epdsim.core.rules import Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import PauseState, Scheduler
from epdsim.core.strip import payload_kind
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_ec_model import announce, hand_in, model_pull, report, send_out
from epdsim.sut.schedule_play import NumDrafts, Play, Tokens
from epdsim.sut.schedule_records import (
    RecordedEc,
    RecordedItem,
    RecordedRequest,
    RecordedTransfer,
    RecordedUpdate,
    RecordedWorkload,
)
from epdsim.sut.schedule_transfers import NO_TRANSFER

_PAUSES = {"new": PauseState.PAUSED_NEW, "all": PauseState.PAUSED_ALL, "nothing": PauseState.UNPAUSED}


class ModelEngine:
    """The model's scheduler.

    Args:
        workload: Its settings are used.
        far: What is beyond its EC connector.
        dialect: Rules in force; by default those of the recorded release.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide, dialect: Dialect | None = None) -> None:
        config = scheduler_config(workload)
        dialect = dialect or named(f"vllm-{workload.config.vllm}")
        self._far = far
        self._pull = model_pull(config.ec_role, far, dialect) if far.pulls else None
        ec = None if config.ec_role == "none" else self._pull or SharedStore(config.ec_role, far.stored)
        self.scheduler = Scheduler(config, dialect, ec)

    def add(self, request: RecordedRequest) -> None:
        """A request arrives."""
        self.scheduler.add_request(request_of(request, self._far.ec), trusted=True)

    def refusal(self, request: RecordedRequest) -> str:
        """Why the front end refuses a request; empty when it does not."""
        return self.scheduler.refusal(request_of(request, self._far.ec))

    def add_update(self, update: RecordedUpdate) -> None:
        """A session gets its next input, or the word that there is none."""
        if update.prompt_token_ids:
            self.scheduler.add_update(_update(update), trusted=True)
        else:
            self.scheduler.close_session(update.request_id)

    def abort(self, request_id: str) -> None:
        """A client leaves."""
        self.scheduler.finish_requests([request_id])
        if self._pull is not None:
            announce(self._pull, self._far)

    def reset(self, which: str) -> None:
        """Reset a cache."""
        if which == "encoder":
            self.scheduler.reset_encoder_cache()
        else:
            self.scheduler.reset_prefix_cache(
                reset_running_requests=which == "running", reset_connector=which == "connector"
            )

    def pause(self, what: str) -> None:
        """Hold something back."""
        self.scheduler.set_pause_state(_PAUSES[what])

    def schedule(self) -> StepPlan:
        """Plan the next step."""
        if self._pull is None:
            return self.scheduler.schedule()
        hand_in(self._pull, self._far)
        plan = self.scheduler.schedule()
        send_out(self._pull, self._far)
        return plan

    def samples(self, plan: StepPlan) -> Collection[str]:
        """Requests that reach the end of their known tokens."""
        return plan.samples

    def told(self, plan: StepPlan) -> dict[str, Any]:
        """A plan in the form of a recording."""
        return recorded_form(plan)

    def transfers(self, plan: StepPlan) -> dict[str, Any]:
        """KV transfers that begin with a plan."""
        loads = [
            {"req_id": one.request_id, "block_ids": list(one.block_ids), "is_async": one.is_async}
            for one in plan.kv_loads
        ]
        return {"kv_loads": loads, "kv_sends": list(plan.kv_sends)}

    def update(self, plan: StepPlan, tokens: Tokens, kv_report: TransferReport | None) -> None:
        """Hand in what a step yielded."""
        self.scheduler.update_from_output(plan, tokens, kv_report)
        if self._pull is not None:
            announce(self._pull, self._far)
            report(self._pull, self._far)

    def propose(self, drafts: NumDrafts) -> None:
        """Hand in what was drafted after a step."""
        self.scheduler.update_draft_tokens(drafts)

    def queues(self) -> dict[str, Any]:
        """Free blocks and both queues."""
        scheduler = self.scheduler
        return {"free_blocks": scheduler.free_blocks, "running": scheduler.running, "waiting": scheduler.waiting}


def model_play(workload: RecordedWorkload, dialect: Dialect | None = None) -> Play[StepPlan]:
    """A recorded workload on the model.

    Args:
        workload: What happens.
        dialect: Rules in force; by default those of the recorded release.
    """
    return Play(workload, lambda given, far: ModelEngine(given, far, dialect))


def scheduler_config(workload: RecordedWorkload) -> SchedulerConfig:
    """The model's settings for a recorded workload."""
    config = workload.config
    largest = config.max_tokens_per_mm_item
    return SchedulerConfig(
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        encoder_cache_size=max(config.encoder_cache_size, largest),
        max_num_encoder_input_tokens=max(config.max_num_encoder_input_tokens, largest),
        enable_prefix_caching=config.enable_prefix_caching,
        policy=config.policy,
        async_scheduling=config.async_scheduling,
        model_runner=config.model_runner,
        uses_mrope=config.uses_mrope,
        disable_chunked_mm_input=config.disable_chunked_mm_input,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
        is_encoder_decoder=config.is_encoder_decoder,
        mm_encoder_only=config.mm_encoder_only,
        kv_role=config.kv_role or "none",
        kv_load_failure_policy=config.kv_load_failure_policy or "fail",
        ec_role=config.ec_role or ("none" if workload.ec_store is None else "consumer"),
        speculative_method=config.speculative_method,
        num_speculative_tokens=config.num_speculative_tokens,
        parallel_drafting=config.parallel_drafting,
        disable_eagle_block_drop=config.disable_eagle_block_drop,
        mamba_block_aligned_split=config.mamba_block_aligned_split,
        strip=config.strip,
    )


def recorded_form(plan: StepPlan) -> dict[str, Any]:
    """A plan in the form of a recording; what is sent late, as by no release, stands under `mm_updates`."""
    updates = {row.request_id: dict.fromkeys(row.mm_updates, "full") for row in plan.cached if row.mm_updates}
    return ({"mm_updates": updates} if updates else {}) | {
        "step": plan.step,
        "num_scheduled_tokens": dict(plan.num_scheduled_tokens),
        "scheduled_encoder_inputs": {name: list(inputs) for name, inputs in plan.scheduled_encoder_inputs.items()},
        "new": [
            {
                "req_id": one.request_id,
                "num_computed_tokens": one.num_computed_tokens,
                "block_ids": list(one.block_ids),
                **_across(one.cross_block_ids),
                "payload": [payload_kind(feature.data) for feature in one.mm_features],
            }
            for one in plan.new
        ],
        "cached": [
            {
                "req_id": one.request_id,
                "num_computed_tokens": one.num_computed_tokens,
                "new_block_ids": None if one.new_block_ids is None else list(one.new_block_ids),
                **_across(one.cross_block_ids),
                "resumed": one.resumed,
            }
            for one in plan.cached
        ],
        "preempted": list(plan.preempted),
        "finished": list(plan.finished),
        "free_encoder_mm_hashes": list(plan.free_encoder_mm_hashes),
        "ec_loads": list(plan.ec_loads),
        "ec_saves": list(plan.ec_saves),
        "num_scheduled_spec_tokens": dict(plan.num_scheduled_spec_tokens),
    }


def _across(block_ids: Sequence[int]) -> dict[str, Any]:
    """Blocks for cross attention, told where there are any."""
    return {"cross_block_ids": list(block_ids)} if block_ids else {}


def request_of(recorded: RecordedRequest, ec: RecordedEc) -> Request:
    """A recorded request, and what the EC side offers it, in the model's terms."""
    offers = {name: EcOffer(*offer) for name, offer in ec.offers.get(recorded.request_id, {}).items()}
    bare = ec.metadata_only.get(recorded.request_id, ())
    return Request(
        ec_offers=offers or None,
        request_id=recorded.request_id,
        prompt=TokenPrompt(recorded.prompt_token_ids),
        max_tokens=recorded.max_tokens,
        mm_features=tuple(_feature(item, is_bare=index in bare) for index, item in enumerate(recorded.mm_features)),
        priority=recorded.priority,
        arrival_time=recorded.arrival_time,
        cache_salt=recorded.cache_salt,
        adapter=recorded.adapter,
        num_remote_tokens=recorded.num_remote_tokens,
        kv_transfer=_transfer(recorded.kv or NO_TRANSFER),
        stop_token_ids=frozenset(recorded.stop_token_ids),
        resumable=recorded.resumable,
    )


def _update(recorded: RecordedUpdate) -> StreamingUpdate:
    return StreamingUpdate(
        request_id=recorded.request_id,
        prompt=TokenPrompt(recorded.prompt_token_ids),
        max_tokens=recorded.max_tokens,
        mm_features=tuple(_feature(item) for item in recorded.mm_features),
        arrival_time=recorded.arrival_time,
        stop_token_ids=frozenset(recorded.stop_token_ids),
    )


def _transfer(recorded: RecordedTransfer) -> KvTransfer:
    return KvTransfer(recorded.load_steps > 0, recorded.num_unready, recorded.num_loads, recorded.send_steps > 0)


_LARGE = Field(TensorHandle("float32", (1,)), BatchedKind())
_GRID = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))


def _feature(item: RecordedItem, *, is_bare: bool = False) -> MediaFeature:
    """An item with the fields that recorded ones have: a large one (unless bare), and audio aside a grid that stays on the CPU."""
    fields = {} if is_bare else {"pixel_values": _LARGE}
    if item.modality != "audio":
        fields["image_grid_thw"] = _GRID
    mask = None if item.is_embed is None else bytes(item.is_embed)
    return MediaFeature(
        item.modality, item.identifier, PlaceholderRange(item.offset, item.length, mask), MediaItem(fields)
    )
