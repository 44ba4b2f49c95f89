"""What an engine decides on a workload, told as events: live from a play, or from the steps of a recording.

There is no clock: the time of an event is the number of its step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from epdsim.events import (
    Admitted,
    CacheReset,
    EncoderFed,
    EngineDied,
    EngineStarted,
    EngineStopped,
    Gathered,
    InputQueued,
    ItemInfo,
    PayloadsSent,
    Preempted,
    RequestAborted,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRefused,
    Sink,
    StepPlanned,
    StepYielded,
)
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_records import RecordedConfig, RecordedItem, RecordedRequest, RecordedUpdate, RecordedWorkload
from epdsim.sut.schedule_workers import Worked
from epdsim.sut.sessions import SessionsUnderTest, SessionTeller

INSTANCE = "engine-0"
MOST_STEPS = 600
"""Steps after which a run that does not end is cut, beside one for each token that is asked for."""
MOST_IDLE_STEPS = 60
"""Steps without a token, with nothing more to come from outside, after which a run does not go on: no wait is that long."""

_WITHOUT_POSITION_FIELDS = ("audio",)
"""Modalities whose recorded items have no keep-on-CPU field."""


class StepTeller:
    """Tells a workload step by step.

    Args:
        workload: Its settings, requests, aborts and resets, looked at step by step; its steps are not looked at.
        system: Whose scheduler it is.
        sink: Takes the events.
        has_workers: Whether what workers do is told.
    """

    def __init__(self, workload: RecordedWorkload, system: str, sink: Sink, *, has_workers: bool = False) -> None:
        self._workload, self._sink = workload, sink
        self._to_come = list(workload.requests)
        self._known: dict[str, RecordedRequest] = {}
        self._outputs: dict[str, int] = {}
        self._admitted: set[str] = set()
        self._left: set[str] = set()
        self._alive: set[str] = set()
        self._beyond = beyond(workload)
        sink(_started(workload.config, system, self._beyond, has_workers=has_workers))

    def arrives_later(self, request: RecordedRequest) -> None:
        """A request that the workload did not name."""
        self._to_come.append(request)

    def refuse(self, number: int, request: RecordedRequest, reason: str) -> None:
        """A request is turned away at the door; of recorded requests nothing is refused but those that are too large."""
        self._to_come.remove(request)
        facts = request.request_id, len(request.prompt_token_ids), request.max_tokens
        items = [_item(one) for one in request.mm_features]
        self._sink(RequestRefused(number, INSTANCE, *facts, items, reason, is_too_large=True))

    def before(self, number: int) -> None:
        """What happens before the schedule call of a step."""
        for request in [one for one in self._to_come if one.arrival_step <= number]:
            self._to_come.remove(request)
            self._known[request.request_id] = request
            self._outputs[request.request_id] = 0
            self._alive.add(request.request_id)
            self._sink(_queued(number, request))
        for update in self._workload.updates:
            if update.arrival_step == number and update.request_id in self._alive:
                self._sink(_input(number, update))
        for at, name in self._workload.aborts:
            if at == number:
                self._abort(number, name)
        for at, which in self._workload.resets:
            if at == number:
                self._sink(CacheReset(number, INSTANCE, which))

    def _abort(self, number: int, name: str) -> None:
        if name in self._alive:
            self._left.add(name)
            self._sink(RequestAborted(number, INSTANCE, name))

    def after(self, number: int, step: Mapping[str, Any]) -> None:
        """What the engine decided in a step, in the form of a recording, and what came of it."""
        sink = self._sink
        for name in step["preempted"]:
            sink(Preempted(number, INSTANCE, name))
        computed: dict[str, int] = {}
        added: dict[str, Sequence[int]] = {}
        for row in step["new"]:
            computed[row["req_id"]] = row["num_computed_tokens"]
            self._admit(number, row, row["block_ids"], row["payload"])
        for row in step["cached"]:
            computed[row["req_id"]] = row["num_computed_tokens"]
            if row["resumed"]:
                self._admit(number, row, row["new_block_ids"] or (), ())
            elif row["new_block_ids"]:
                added[row["req_id"]] = row["new_block_ids"]
        for name, payloads in step.get("mm_updates", {}).items():
            sink(PayloadsSent(number, INSTANCE, name, payloads))
        sink(
            StepPlanned(
                number,
                INSTANCE,
                step["step"],
                step["num_scheduled_tokens"],
                step["scheduled_encoder_inputs"],
                step.get("ec_loads", ()),
                step["free_encoder_mm_hashes"],
                computed,
                added,
                step["finished"],
            )
        )
        if step.get("worker") is not None:
            self._worked(number, step["worker"])
        for at, name in self._workload.late_aborts:
            if at == number:
                self._abort(number, name)
        self._yielded(number, step)

    def _worked(self, number: int, worked: Worked) -> None:
        for run in worked.runs:
            self._sink(EncoderFed(number, INSTANCE, run.request_id, run.index, run.held))
        for one in worked.splices:
            where = one.request_id, one.index, one.start, one.end
            is_resident = one.num_rows is not None
            self._sink(Gathered(number, INSTANCE, *where, is_resident, one.places, one.rows, one.is_own))

    def _admit(self, number: int, row: Mapping[str, Any], blocks: Sequence[int], payloads: Sequence[str]) -> None:
        name = row["req_id"]
        request = self._known[name]
        self._sink(
            Admitted(
                number,
                INSTANCE,
                name,
                len(request.prompt_token_ids),
                row["num_computed_tokens"],
                request.num_remote_tokens,
                payloads,
                name in self._admitted,
                blocks,
            )
        )
        self._admitted.add(name)

    def _yielded(self, number: int, step: Mapping[str, Any]) -> None:
        running, waiting = step["running"], step["waiting"]
        for name, tokens in step["sampled"].items():
            self._outputs[name] = min(self._outputs[name] + len(tokens), self._most(name))
        self._sink(StepYielded(number, INSTANCE, step["step"], step["sampled"], running, waiting, step["free_blocks"]))
        alive = {*running, *waiting}
        for name in sorted(self._alive - alive):
            if name in self._left:
                continue
            if self._beyond or self._outputs[name] >= self._most(name):
                self._sink(RequestFinished(number, INSTANCE, name, self._outputs[name]))
            else:
                self._sink(RequestFailed(number, INSTANCE, name, "it ended without all its tokens"))
        self._alive = alive

    def _most(self, name: str) -> int:
        """Tokens that a request yields at most: as many as it asks for, or up to the end of the longest sequence."""
        request = self._known[name]
        return min(request.max_tokens, self._workload.config.max_model_len - len(request.prompt_token_ids))

    def end(self, number: int, unfinished: Collection[str]) -> None:
        """Nothing more is to come."""
        self._sink(EngineStopped(number, INSTANCE, sorted(unfinished)))


def beyond(workload: RecordedWorkload) -> list[str]:
    """What befalls a workload that events do not tell in full, in the words of `EngineStarted.beyond`."""
    config, requests = workload.config, workload.requests
    found = {
        "sessions": bool(workload.updates) or any(one.resumable for one in requests),
        "stops": any(one.stop_token_ids for one in requests),
        "pauses": bool(workload.pauses),
        "drafts": config.speculative_method != "none" or config.mamba_block_aligned_split,
        "transfers": config.kv_role is not None,
        "pull": workload.ec is not None,
        "cross attention": config.is_encoder_decoder,
        "encoding alone": config.mm_encoder_only,
    }
    return [name for name, is_there in found.items() if is_there]


def tell_recorded(workload: RecordedWorkload, sink: Sink) -> None:
    """The events of a recorded workload."""
    teller = StepTeller(workload, f"vllm {workload.config.vllm}, recorded", sink)
    for number, step in enumerate(workload.steps):
        teller.before(number)
        teller.after(number, step)
    teller.end(len(workload.steps), workload.unfinished)


def tell_play(
    workload: RecordedWorkload,
    make_play: Callable[[RecordedWorkload], Play[Any]],
    system: str,
    sink: Sink,
    most_steps: int | None = None,
    sessions: SessionsUnderTest | None = None,
) -> None:
    """Play a workload to an engine until everybody has been served, and tell what it decides.

    Tokens follow from what a request has so far, as greedy decoding's do, so that equal prompts have equal answers.

    Args:
        workload: What happens; its steps are not looked at.
        make_play: Which engine.
        system: Whose it is, in words.
        sink: Takes the events.
        most_steps: Where to stop at the latest; by default `MOST_STEPS` and a step for each token that is asked for.
        sessions: Reads what sessions hold, which is then told too.
    """
    play = make_play(workload)
    teller = StepTeller(workload, system, sink, has_workers=play.has_workers)
    requests = {request.request_id: request for request in workload.requests}
    known = {name: [*request.prompt_token_ids] for name, request in requests.items()}

    def sample(name: str, num_drafts: int) -> list[int]:
        """What greedy decoding says next; of drafts about every second is right."""
        tokens = known[name]
        stops = requests[name].stop_token_ids
        fresh = [next_token(tokens, stops)]
        while len(fresh) <= num_drafts and sum(tokens[-3:]) % 2:
            fresh.append(next_token([*tokens, *fresh], stops))
        tokens += fresh
        return fresh

    held = None if sessions is None else SessionTeller(workload, play.engine, sessions)
    num_drafts = workload.config.num_speculative_tokens
    alive: list[str] = []
    number = num_idle = 0
    latest = _latest(workload)
    if most_steps is None:
        most_steps = MOST_STEPS + sum(one.max_tokens for one in (*workload.requests, *workload.updates))
    while number < most_steps and num_idle < MOST_IDLE_STEPS:
        try:
            for refused in play.refused(number):
                teller.refuse(number, *refused)
            teller.before(number)
            step = play.step(number, sample, lambda name: max(0, num_drafts - len(known[name]) % 3))
        except Exception as error:  # noqa: BLE001 - whatever an engine dies of is a finding
            sink(EngineDied(number, INSTANCE, f"{type(error).__name__}: {error}"))
            return
        teller.after(number, step)
        for seen in held.seen(number, INSTANCE) if held is not None else ():
            sink(seen)
        num_idle = 0 if step["num_scheduled_tokens"] or number < latest else num_idle + 1
        number += 1
        alive = [*step["running"], *step["waiting"]]
        if not alive and play.is_idle:
            break
    teller.end(number, alive)


def _latest(workload: RecordedWorkload) -> int:
    """The last step in which something comes from outside."""
    incidents = (workload.aborts, workload.late_aborts, workload.resets, workload.pauses)
    inputs = [one.arrival_step for one in (*workload.requests, *workload.updates)]
    return max([0, *inputs, *(step for some in incidents for step, _ in some)])


def next_token(tokens: Sequence[int], stops: Sequence[int] = ()) -> int:
    """A token that follows from all before it: from 1 to 3, or now and then one that ends the output."""
    number = (sum(tokens) * 31 + len(tokens) * 17) % 97
    return stops[0] if stops and number < 9 else number % 3 + 1


def _started(config: RecordedConfig, system: str, beyond: Sequence[str], *, has_workers: bool) -> EngineStarted:
    largest = config.max_tokens_per_mm_item
    return EngineStarted(
        0,
        INSTANCE,
        system,
        config.block_size,
        config.num_gpu_blocks,
        config.max_num_batched_tokens,
        config.max_num_seqs,
        max(config.encoder_cache_size, largest),
        max(config.max_num_encoder_input_tokens, largest),
        config.model_runner,
        config.policy,
        config.async_scheduling,
        config.uses_mrope,
        config.disable_chunked_mm_input,
        config.ec_role or "none",
        beyond,
        has_workers,
        config.strip == "deferred",
        config.max_model_len,
        config.long_prefill_token_threshold,
    )


def _queued(number: int, request: RecordedRequest) -> RequestQueued:
    return RequestQueued(
        number,
        INSTANCE,
        request.request_id,
        len(request.prompt_token_ids),
        request.max_tokens,
        [_item(one) for one in request.mm_features],
        request.prompt_token_ids,
        request.cache_salt,
        request.adapter,
        request.num_remote_tokens,
    )


def _input(number: int, update: RecordedUpdate) -> InputQueued:
    items = [_item(one) for one in update.mm_features]
    tokens = update.prompt_token_ids
    return InputQueued(number, INSTANCE, update.request_id, len(tokens), update.max_tokens, items, tokens)


def _item(item: RecordedItem) -> ItemInfo:
    mask = None if item.is_embed is None else [int(bit) for bit in item.is_embed]
    has_fields = item.modality not in _WITHOUT_POSITION_FIELDS
    return ItemInfo(item.modality, item.identifier, item.offset, item.length, mask, has_fields)
