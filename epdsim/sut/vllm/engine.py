"""The real scheduler as the engine of a play: the release that is installed, in this process, without a model or a worker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from epdsim.core.ec.connector import NOTHING_TO_DO, EcStep
from epdsim.core.plan import TransferReport
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_play import EngineDiedError, NumDrafts, Play, Tokens
from epdsim.sut.schedule_records import RecordedItem, RecordedRequest, RecordedUpdate, RecordedWorkload
from epdsim.sut.vllm.connectors import ec_connector
from epdsim.sut.vllm.door import VllmDoor
from epdsim.sut.vllm.ec_pull import PullAdapter
from epdsim.sut.vllm.release import load
from epdsim.sut.vllm.settings import (
    engine_settings,
    has_kv_connector,
    kv_cache_config,
    media_registry,
    structured_output,
)


class VllmEngine:
    """The real scheduler of the installed release.

    Args:
        workload: Its settings are used; which connectors are there depends on it too.
        far: What is beyond its EC connector.

    Attributes:
        scheduler: vLLM's own object.

    Raises:
        InputError: vLLM is not installed.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide) -> None:
        config = workload.config
        self._release = release = load()
        settings = engine_settings(release, workload)
        make = release.AsyncScheduler if config.async_scheduling else release.Scheduler
        self.scheduler = make(
            vllm_config=settings,
            kv_cache_config=kv_cache_config(release, config),
            structured_output_manager=structured_output(),
            block_size=config.block_size,
            mm_registry=media_registry(settings, config),
        )
        if config.mamba_block_aligned_split:
            # What a second, recurrent KV group would switch on: chunks are cut the same, the blocks are those of one group.
            self.scheduler.need_mamba_block_aligned_split = True
        self._far = far
        self._pull = PullAdapter(settings, config.ec_role or "consumer", far) if far.pulls else None
        if self._pull is not None:
            self.scheduler.ec_connector = self._pull.connector
        elif workload.ec_store is not None:
            self.scheduler.ec_connector = ec_connector(release, settings, config.ec_role or "consumer", far.stored)
        self._recorded: dict[str, RecordedRequest] = {}
        if has_kv_connector(workload):
            self.scheduler.connector.requests = self._recorded
        self._hasher = release.get_request_block_hasher(config.block_size, release.sha256)
        self._encodes_only = config.mm_encoder_only
        self._door = VllmDoor(release, config) if config.has_door else None
        self._step = 0
        _order_refusals(self.scheduler)

    def add(self, request: RecordedRequest) -> None:
        """A request arrives."""
        release = self._release
        self._recorded[request.request_id] = request
        adapter = request.adapter
        bare = self._far.ec.metadata_only.get(request.request_id, ())
        made = release.Request(
            request_id=request.request_id,
            prompt_token_ids=list(request.prompt_token_ids),
            sampling_params=_sampling(release, request),
            pooling_params=None,
            arrival_time=request.arrival_time,
            mm_features=[
                _feature(release, item, is_bare=index in bare) for index, item in enumerate(request.mm_features)
            ],
            priority=request.priority,
            block_hasher=self._hasher,
            cache_salt=request.cache_salt,
            lora_request=adapter and release.LoRARequest(adapter, 1 + sum(adapter.encode()), f"/{adapter}"),
            resumable=request.resumable,
        )
        if self._pull is not None:
            made.ec_transfer_params = self._pull.params(self._far.ec.offers.get(request.request_id, {}))
        self.scheduler.add_request(made)

    def refusal(self, request: RecordedRequest) -> str:
        """Why the front end refuses a request; empty when it does not."""
        return "" if self._door is None else self._door.refusal(request)

    def add_update(self, update: RecordedUpdate) -> None:
        """A session gets its next input, or the word that there is none; a front end sends neither to one that has ended."""
        release = self._release
        if update.request_id not in self.scheduler.requests:
            return
        self.scheduler.add_request(
            release.Request(
                request_id=update.request_id,
                prompt_token_ids=list(update.prompt_token_ids) or [0],
                sampling_params=_sampling(release, update),
                pooling_params=None,
                arrival_time=update.arrival_time,
                mm_features=[_feature(release, item) for item in update.mm_features],
                resumable=bool(update.prompt_token_ids),
            )
        )

    def abort(self, request_id: str) -> None:
        """A client leaves."""
        self.scheduler.finish_requests(request_id, self._release.RequestStatus.FINISHED_ABORTED)

    def reset(self, which: str) -> None:
        """Reset a cache."""
        if which == "encoder":
            self.scheduler.reset_encoder_cache()
            return
        # A release raises when sessions hold blocks, after it has preempted all that runs.
        with suppress(RuntimeError):
            self.scheduler.reset_prefix_cache(
                reset_running_requests=which == "running", reset_connector=which == "connector"
            )

    def pause(self, what: str) -> None:
        """Hold something back."""
        state = self._release.PauseState
        names = {"new": state.PAUSED_NEW, "all": state.PAUSED_ALL, "nothing": state.UNPAUSED}
        self.scheduler.set_pause_state(names[what])

    def schedule(self) -> Any:
        """Plan the next step; vLLM's own plan."""
        self._step += 1
        with _dying():
            return self.scheduler.schedule()

    def samples(self, plan: Any) -> Collection[str]:
        """Requests that yield a token: those that reach the end of their known tokens; in an encoder, what its runner says."""
        if self._encodes_only:
            output = self._release.make_empty_encoder_model_runner_output(plan)
            return {name for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True) if tokens}
        requests = self.scheduler.requests
        drafts = plan.scheduled_spec_decode_tokens
        return {name for name in plan.num_scheduled_tokens if _is_sampled(requests[name], len(drafts.get(name, ())))}

    def told(self, plan: Any) -> dict[str, Any]:
        """A plan in the form of a recording."""
        cached = plan.scheduled_cached_reqs
        copies = self._copies(plan.ec_connector_metadata)
        return {
            "step": self._step - 1,
            "num_scheduled_tokens": dict(plan.num_scheduled_tokens),
            "scheduled_encoder_inputs": {name: list(inputs) for name, inputs in plan.scheduled_encoder_inputs.items()},
            "new": [
                {
                    "req_id": one.req_id,
                    "num_computed_tokens": one.num_computed_tokens,
                    **_tables("block_ids", one.block_ids),
                    "payload": [payload_kind_of(feature.data) for feature in one.mm_features],
                }
                for one in plan.scheduled_new_reqs
            ],
            "cached": [
                {
                    "req_id": name,
                    "num_computed_tokens": cached.num_computed_tokens[index],
                    **_tables("new_block_ids", cached.new_block_ids[index]),
                    "resumed": name in cached.resumed_req_ids,
                }
                for index, name in enumerate(cached.req_ids)
            ],
            "preempted": sorted(plan.preempted_req_ids or ()),
            "finished": sorted(plan.finished_req_ids),
            "free_encoder_mm_hashes": list(plan.free_encoder_mm_hashes),
            "ec_loads": copies.loads,
            "ec_saves": copies.saves,
            "num_scheduled_spec_tokens": {name: len(ids) for name, ids in plan.scheduled_spec_decode_tokens.items()},
        }

    def _copies(self, metadata: Any) -> EcStep:
        """What the EC connector tells the workers."""
        if metadata is None:
            return NOTHING_TO_DO
        if self._pull is not None:
            return self._pull.told(metadata)
        return EcStep([one.mm_hash for one in metadata.mm_datas])

    def transfers(self, plan: Any) -> dict[str, Any]:
        """KV transfers that begin with a plan just made."""
        del plan
        return self.scheduler.connector.take_transfers()

    def update(self, plan: Any, tokens: Tokens, kv_report: TransferReport | None) -> None:
        """Hand in what a step yielded, and what workers say about KV transfers with it."""
        names = list(plan.num_scheduled_tokens)
        output = self._release.ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[list(tokens[name]) for name in names],
            ec_connector_output=None if self._pull is None else self._pull.report(self._release),
            kv_connector_output=_transfer_output(self._release, kv_report),
        )
        with _dying():
            self.scheduler.update_from_output(plan, output)

    def propose(self, drafts: NumDrafts) -> None:
        """Hand in what was drafted after a step; which tokens is of no matter."""
        names = list(drafts)
        self.scheduler.update_draft_token_ids(
            self._release.DraftTokenIds(names, [[1] * drafts[name] for name in names])
        )

    def queues(self) -> dict[str, Any]:
        """Free blocks and both queues."""
        scheduler = self.scheduler
        return {
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in _waiting(scheduler)],
        }


@contextmanager
def _dying() -> Iterator[None]:
    """Tell an assertion of the release from one of ours."""
    try:
        yield
    except AssertionError as error:
        raise EngineDiedError(str(error)) from error


def vllm_play(workload: RecordedWorkload) -> Play[Any]:
    """A workload on the installed release."""
    return Play(workload, VllmEngine)


def installed_version() -> str:
    """The installed release, for example `"0.32.0"`.

    Raises:
        InputError: vLLM is not installed.
    """
    return load().version


def _sampling(release: Any, asked: RecordedRequest | RecordedUpdate) -> Any:
    return release.SamplingParams(
        max_tokens=asked.max_tokens or 1, ignore_eos=True, stop_token_ids=list(asked.stop_token_ids)
    )


def _is_sampled(request: Any, num_drafts: int) -> bool:
    """Whether the step just planned reaches the end of a request's known tokens."""
    if hasattr(request, "is_prefill_chunk"):
        return not request.is_prefill_chunk
    return request.num_computed_tokens >= request.num_tokens + max(0, request.num_output_placeholders - 1 - num_drafts)


def _transfer_output(release: Any, report: TransferReport | None) -> Any:
    """A report in the release's form; in lists, since the order of its sets of ids differs from process to process."""
    if report is None:
        return None
    return release.KVConnectorOutput(
        finished_sending=report.sent,
        finished_recving=report.received,
        invalid_block_ids=set(report.invalid_blocks),
        failed_recving=set(report.failed),
    )


def _tables(name: str, groups: Any) -> dict[str, Any]:
    """Blocks of the first group under `name`; those for cross attention where there are any; an encoder has no group."""
    if groups is None:
        return {name: None}
    own, across = (*groups, (), ())[:2]
    return {name: list(own)} | ({"cross_block_ids": list(across)} if across else {})


def _waiting(scheduler: Any) -> Iterator[Any]:
    # Releases before 0.31 set requests aside that are not ready, later ones those that hold blocks.
    for queue in ("kv_holding_waiting", "skipped_waiting", "waiting"):
        yield from getattr(scheduler, queue, ())


def _order_refusals(scheduler: Any) -> None:
    """Let requests that fail in one step end in the order in which they were refused.

    The release keeps them in sets of strings, whose order differs from process to process and decides which block is free next.
    """
    if not hasattr(scheduler, "encoder_cache_mismatch_reqs"):
        return
    refused = scheduler.encoder_cache_mismatch_reqs = _OrderedIds()
    finish = scheduler.finish_requests

    def finish_in_order(request_ids: str | Iterable[str], status: Any) -> list[Any]:
        if isinstance(request_ids, str):
            return finish(request_ids, status)
        place = {name: index for index, name in enumerate(refused.order)}
        ordered = sorted(request_ids, key=lambda name: (place.get(name, len(place)), name))
        return [request for name in ordered for request in finish(name, status)]

    scheduler.finish_requests = finish_in_order


class _OrderedIds(set[str]):
    """A set that remembers the order in which ids came."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def add(self, element: str) -> None:
        super().add(element)
        self.order.append(element)


def _feature(release: Any, item: RecordedItem, *, is_bare: bool = False) -> Any:
    """An item with the fields that recorded ones have: a large one (unless bare), and audio aside a grid that stays on the CPU."""
    element, field = release.MultiModalFieldElem, release.MultiModalBatchedField
    data = {} if is_bare else {"pixel_values": element(data=release.torch.zeros(1), field=field())}
    if item.modality != "audio":
        grid = release.torch.zeros(3, dtype=release.torch.int64)
        data["image_grid_thw"] = element(data=grid, field=field(keep_on_cpu=True))
    mask = None if item.is_embed is None else release.torch.tensor(item.is_embed, dtype=release.torch.bool)
    return release.MultiModalFeatureSpec(
        data=release.MultiModalKwargsItem(data),
        modality=item.modality,
        identifier=item.identifier,
        mm_position=release.PlaceholderRange(offset=item.offset, length=item.length, is_embed=mask),
    )


def payload_kind_of(data: Any) -> str:
    """What a worker is sent for an item, in the words of a recording."""
    if data is None:
        return "none"
    if not data:
        return "empty"
    return "full" if "pixel_values" in data else "metadata"
