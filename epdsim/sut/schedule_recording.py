"""Replay of schedules recorded from a real vLLM: the same workload through the model, compared field by field.

A recording is NDJSON, plain or gzipped, one workload a line: settings, requests with their arrival steps, aborts, and what the
scheduler decided in each step. The replay feeds the recorded tokens back and compares every recorded field. It reads one line
at a time.
"""

from __future__ import annotations

import gzip
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import StepPlan
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases import named
from epdsim.core.request import Request
from epdsim.core.rules import Dialect
from epdsim.core.scheduler import Scheduler
from epdsim.core.scheduler_config import SchedulerConfig
from epdsim.core.strip import payload_kind
from epdsim.sut.replay import ReplayCount, ReplayReport

STORY_STEPS = 3
"""Steps before the first difference that the report tells."""


_ABSENT = "(absent)"


class RecordedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a recorded workload."""

    vllm: str
    mode: str
    seed: int
    block_size: int
    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    encoder_cache_size: int
    max_num_encoder_input_tokens: int
    max_tokens_per_mm_item: int
    enable_prefix_caching: bool
    policy: str
    async_scheduling: bool
    model_runner: str
    uses_mrope: bool
    disable_chunked_mm_input: bool
    scheduler_reserve_full_isl: bool
    long_prefill_token_threshold: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    ec_role: str | None = None


class RecordedItem(msgspec.Struct, frozen=True, kw_only=True):
    """One media item of a recorded request."""

    modality: str
    identifier: str
    offset: int
    length: int
    is_embed: list[bool] | None


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a recorded workload."""

    request_id: str
    arrival_step: int
    prompt_token_ids: list[int]
    max_tokens: int
    priority: int
    arrival_time: float
    mm_features: list[RecordedItem]
    cache_salt: str | None = None
    adapter: str | None = None


class RecordedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a recording; steps stay as they were written, since they are only compared.

    `resets` names the caches that are reset before the schedule call of a step, `"prefix"` or `"encoder"`.
    """

    config: RecordedConfig
    requests: list[RecordedRequest]
    aborts: list[tuple[int, str]]
    steps: list[dict[str, Any]]
    unfinished: list[str]
    late_aborts: list[tuple[int, str]] = []
    ec_store: list[str] | None = None
    resets: list[tuple[int, str]] = []


class Difference(msgspec.Struct, frozen=True):
    """The first field of a workload that is not equal."""

    step: int
    field: str
    recorded: object
    ours: object


def replay_schedules(path: Path) -> ReplayReport:
    """Replay a recording of schedules.

    Args:
        path: A `.jsonl` file, gzipped when its name ends in `.gz`.

    Raises:
        InputError: The file cannot be read, or a line of it is not a recorded workload.
    """
    num_workloads = num_equal = num_steps = num_steps_equal = 0
    releases: dict[str, None] = {}
    first: tuple[str, ...] = ()
    for line, workload in read_schedules(path):
        releases[workload.config.vllm] = None
        num_workloads += 1
        num_steps += len(workload.steps)
        try:
            equal, difference = replay_workload(workload)
        except InputError as error:
            raise error.at(f"{path}, line {line}") from error
        num_steps_equal += equal
        num_equal += difference is None
        if difference is not None and not first:
            first = tell_difference(workload, line, difference)
    if not num_workloads:
        raise InputError(str(path), "it holds no workload")
    return ReplayReport(
        recording=str(path),
        release=" and ".join(f"vllm {release}" for release in releases),
        counts=(ReplayCount("workloads", num_equal, num_workloads), ReplayCount("steps", num_steps_equal, num_steps)),
        first_difference=first,
    )


def read_schedules(path: Path) -> Iterator[tuple[int, RecordedWorkload]]:
    """Line numbers and workloads of a recording, one at a time.

    Raises:
        InputError: The file cannot be read, or a line of it is not a recorded workload.
    """
    decoder = msgspec.json.Decoder(RecordedWorkload)
    line = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for line, text in enumerate(lines, 1):
                yield line, decoder.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}, line {line}", f"it is not a recorded workload ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}, line {line + 1}", f"it cannot be read ({error})", "fetch the file again") from error


def replay_workload(workload: RecordedWorkload) -> tuple[int, Difference | None]:
    """Replay one workload: the number of equal steps up to the first difference, and that."""
    run = WorkloadRun(workload)
    for equal, step in enumerate(workload.steps):
        sampled = step.get("sampled")
        if not isinstance(sampled, dict):
            raise InputError(f"step {equal}", "it does not say what was sampled")
        ours = run.step(equal, sampled)
        for field in {**step, **ours}:
            if not _same(step.get(field, _ABSENT), ours.get(field, _ABSENT)):
                return equal, Difference(equal, field, step.get(field, _ABSENT), ours.get(field, _ABSENT))
    return len(workload.steps), None


class WorkloadRun:
    """A recorded workload on the model, step by step.

    Args:
        workload: What happens.
        dialect: Rules in force; by default those of the recorded release.
    """

    def __init__(self, workload: RecordedWorkload, dialect: Dialect | None = None) -> None:
        self.workload = workload
        self._stored = set(workload.ec_store or ())
        self.scheduler = Scheduler(
            scheduler_config(workload), dialect or named(f"vllm-{workload.config.vllm}"), ec_store=self._stored
        )
        self._late = [(request.arrival_step, request) for request in workload.requests]
        self._features = {request.request_id: request.mm_features for request in workload.requests}
        self._in_flight: deque[tuple[StepPlan, Mapping[str, Sequence[int]], set[str]]] = deque()
        self._depth = 1 if workload.config.async_scheduling else 0

    def decide(self, number: int, sampled: Mapping[str, Sequence[int]]) -> StepPlan:
        """Play step `number` with the tokens that the workers produced for it; what the model decides."""
        scheduler, workload = self.scheduler, self.workload
        for _, request in [one for one in self._late if one[0] <= number]:
            scheduler.add_request(_request(request))
        self._late = [one for one in self._late if one[0] > number]
        scheduler.finish_requests(name for at, name in workload.aborts if at == number)
        for at, which in workload.resets:
            if at == number:
                scheduler.reset_prefix_cache() if which == "prefix" else scheduler.reset_encoder_cache()
        plan = scheduler.schedule()
        encoded = self._encoded(plan)
        scheduler.finish_requests(name for at, name in workload.late_aborts if at == number)
        self._in_flight.append((plan, sampled, encoded))
        while len(self._in_flight) > self._depth:
            done, tokens, saved = self._in_flight.popleft()
            scheduler.update_from_output(done, tokens)
            self._stored |= saved
        return plan

    def step(self, number: int, sampled: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Play step `number`; what the model decides, in the form of a recording."""
        plan = self.decide(number, sampled)
        ours = recorded_form(plan)
        ours["sampled"] = {
            name: (sampled.get(name) or ["a token"]) if name in plan.samples else []
            for name in plan.num_scheduled_tokens
        }
        if self.workload.ec_store is not None:
            ours["ec_loads"] = list(plan.ec_loads)
        scheduler = self.scheduler
        return ours | {"free_blocks": scheduler.free_blocks, "running": scheduler.running, "waiting": scheduler.waiting}

    def _encoded(self, plan: StepPlan) -> set[str]:
        """What a producer saves in the EC store when it has run the step."""
        if self.workload.config.ec_role not in {"producer", "both"}:
            return set()
        inputs = plan.scheduled_encoder_inputs.items()
        return {self._features[name][index].identifier for name, indices in inputs for index in indices}


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
        ec_role=config.ec_role or ("none" if workload.ec_store is None else "consumer"),
    )


def recorded_form(plan: StepPlan) -> dict[str, Any]:
    """A plan in the form of a recording."""
    return {
        "step": plan.step,
        "num_scheduled_tokens": dict(plan.num_scheduled_tokens),
        "scheduled_encoder_inputs": {name: list(inputs) for name, inputs in plan.scheduled_encoder_inputs.items()},
        "new": [
            {
                "req_id": one.request_id,
                "num_computed_tokens": one.num_computed_tokens,
                "block_ids": list(one.block_ids),
                "payload": [payload_kind(feature.data) for feature in one.mm_features],
            }
            for one in plan.new
        ],
        "cached": [
            {
                "req_id": one.request_id,
                "num_computed_tokens": one.num_computed_tokens,
                "new_block_ids": None if one.new_block_ids is None else list(one.new_block_ids),
                "resumed": one.resumed,
            }
            for one in plan.cached
        ],
        "preempted": list(plan.preempted),
        "finished": list(plan.finished),
        "free_encoder_mm_hashes": list(plan.free_encoder_mm_hashes),
    }


def tell_difference(workload: RecordedWorkload, line: int, difference: Difference) -> tuple[str, ...]:
    """A difference in words: where, what, both values, and the steps before it."""
    config = workload.config
    story = [
        f"  step {step['step']}: {step.get('num_scheduled_tokens')} tokens, {step.get('free_blocks')} free blocks, "
        f"running {step.get('running')}, waiting {step.get('waiting')}, preempted {step.get('preempted')}"
        for step in workload.steps[max(0, difference.step - STORY_STEPS) : difference.step]
    ]
    return (
        f"line {line}: mode {config.mode}, seed {config.seed}, step {difference.step}, field {difference.field}",
        f"  recorded: {difference.recorded}",
        f"  model:    {difference.ours}",
        "the recorded steps before it:" if story else "it is the first step",
        *story,
    )


def _same(recorded: object, ours: object) -> bool:
    """Whether two fields are equal; the order of keys is a decision too."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        return list(recorded.items()) == list(ours.items())
    return recorded == ours


def _request(recorded: RecordedRequest) -> Request:
    return Request(
        request_id=recorded.request_id,
        prompt=TokenPrompt(recorded.prompt_token_ids),
        max_tokens=recorded.max_tokens,
        mm_features=tuple(_feature(item) for item in recorded.mm_features),
        priority=recorded.priority,
        arrival_time=recorded.arrival_time,
        cache_salt=recorded.cache_salt,
        adapter=recorded.adapter,
    )


_LARGE = Field(TensorHandle("float32", (1,)), BatchedKind())
_GRID = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))


def _feature(item: RecordedItem) -> MediaFeature:
    """An item with the fields that recorded ones have: a large one, and (audio aside) a grid that stays on the CPU."""
    fields = {"pixel_values": _LARGE} if item.modality == "audio" else {"pixel_values": _LARGE, "image_grid_thw": _GRID}
    mask = None if item.is_embed is None else bytes(item.is_embed)
    return MediaFeature(
        item.modality, item.identifier, PlaceholderRange(item.offset, item.length, mask), MediaItem(fields)
    )
