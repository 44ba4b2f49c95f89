"""The release's own model runners without a model: what they keep of requests, embeddings and block tables, step by step.

The runner's own methods take a real plan in and say what is to be encoded and gathered. What needs a device or weights is stood in
for: an encoder run leaves a tensor of as many rows as the item has embeddings, nothing is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any
from unittest import mock

from epdsim.core.errors import InputError
from epdsim.core.workers.records import EncoderRun, Splice
from epdsim.sut.schedule_play import Tokens
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.vllm.engine import payload_kind_of
from epdsim.sut.vllm.release import load_with
from epdsim.sut.vllm.settings import StandIn

_V1 = {"vllm.v1.worker.gpu_model_runner": ("GPUModelRunner",), "vllm.v1.worker.gpu_input_batch": ("InputBatch",)}
_V2 = {
    "vllm.v1.worker.gpu.model_runner": ("GPUModelRunner",),
    "vllm.v1.worker.gpu.mm.encoder_cache": ("EncoderCache",),
    "vllm.v1.worker.gpu.mm.encoder_runner": ("EncoderRunner",),
    "numpy": ("array", "cumsum"),
}
_MISS = re.compile(r"Encoder cache miss for (.*)\.")
State = dict[str, Any]
"""A runner after a step: `requests` (block table, computed tokens, what is held of each item; of requests in the step),
`others` (ids of those kept beside), `embeddings`, `encoded`, and `missed`, the first embedding that was not there; further
`runs` and `splices`, what it held for its encoder and what it gathered."""
COMPARED = ("requests", "others", "embeddings", "encoded", "missed")


@cache
def has_known_runners() -> bool:
    """Whether the installed release's runners are those that can be driven here: 0.32."""
    try:
        load_with(_V1)
        return load_with(_V2).version.startswith("0.32.")
    except InputError:
        return False


class V1Runner:
    """The v1 runner of the installed release.

    Args:
        workload: Its settings are used.
    """

    def __init__(self, workload: RecordedWorkload) -> None:
        self._vllm = vllm = load_with(_V1)
        self._only_encodes = workload.config.ec_role == "producer"
        config, cpu = workload.config, vllm.torch.device("cpu")
        runner = self._runner = object.__new__(vllm.GPUModelRunner)
        blocks = -(-config.max_model_len // config.block_size) + 1
        runner.input_batch = vllm.InputBatch(
            config.max_num_seqs,
            config.max_model_len,
            config.max_num_batched_tokens,
            cpu,
            1000,
            [config.block_size],
            [blocks],
        )
        for name, value in {
            "requests": {},
            "encoder_cache": {},
            "num_prompt_logprobs": {},
            "late_interaction_runner": StandIn(
                on_requests_finished=_nothing, register_request=_nothing, clear=_nothing
            ),
            "speculative_config": None,
            "use_async_spec_decode": False,
            "use_async_scheduling": config.async_scheduling,
            "is_pooling_model": False,
            "uses_mrope": False,
            "uses_xdrope_dim": 0,
            "is_multimodal_pruning_enabled": False,
            "device": cpu,
            "_may_reorder_batch": _nothing,
        }.items():
            setattr(runner, name, value)

    def execute(self, plan: Any, features: Mapping[str, Sequence[Any]]) -> State:
        """Take a step in."""
        runner, rank = self._runner, StandIn(is_last_rank=True)
        with mock.patch("vllm.v1.worker.gpu_model_runner.get_pp_group", return_value=rank):
            runner._update_states(plan)  # noqa: SLF001
        _load(self._vllm, plan, runner.encoder_cache, features)
        encoded: list[str] = []
        held = {name: request.mm_features for name, request in runner.requests.items()}
        runs = _runs(plan, held, ())
        chosen = zip(*runner._batch_mm_inputs_from_scheduler(plan), strict=True)  # noqa: SLF001
        for identifier, (_, item), (_, span) in chosen:
            _encode(self._vllm, runner.encoder_cache, encoded, identifier, item, span)
        is_gathered = plan.num_scheduled_tokens and not self._only_encodes
        batch = runner.input_batch
        chunks = [
            (name, runner.requests[name].num_computed_tokens, plan.num_scheduled_tokens[name]) for name in batch.req_ids
        ]
        gather = (lambda: runner._gather_mm_embeddings(plan)) if is_gathered else None  # noqa: SLF001
        missed, splices = _gathered(gather, chunks, held, runner.encoder_cache)
        requests: State = {}
        for name in plan.num_scheduled_tokens:
            request, row = runner.requests[name], batch.req_id_to_index[name]
            table = batch.block_table[0]
            count = int(table.num_blocks_per_row[row])
            in_batch = [int(block) for block in table.block_table.np[row, :count]]
            assert in_batch == list(request.block_ids[0]), "the runner's two tables differ"
            requests[name] = [in_batch, request.num_computed_tokens, _kinds(request.mm_features)]
        state = state_after(plan, requests, runner.requests, runner.encoder_cache, encoded, missed)
        return state | {"runs": runs, "splices": splices}

    def reset_encoder_cache(self) -> None:
        """Drop all embeddings."""
        self._runner.reset_encoder_cache()

    def sampled(self, tokens: Tokens) -> None:
        """What the step yielded."""
        for name, new in tokens.items():
            self._runner.requests[name].output_token_ids.extend(new)


class V2Runner:
    """The v2 runner of the installed release.

    Args:
        workload: Its settings are used.
    """

    def __init__(self, workload: RecordedWorkload) -> None:
        assert workload.config.model_runner == "v2"
        self._vllm = vllm = load_with(_V2)
        self._only_encodes = workload.config.ec_role == "producer"
        self._cache = vllm.EncoderCache()
        self._tables: dict[int, list[int]] = {}
        self._slots = _Slots(vllm)
        runner = self._runner = object.__new__(vllm.GPUModelRunner)
        nothing = StandIn(add_request=_nothing, remove_request=_nothing, apply_staged_writes=_nothing)
        for name, value in {
            "encoder_cache": self._cache,
            "req_states": self._slots,
            "model_state": nothing,
            "lora_state": nothing,
            "block_tables": StandIn(append_block_ids=self._append),
            "is_last_pp_rank": False,
        }.items():
            setattr(runner, name, value)
        for name in (
            "pooling_runner",
            "pp_handler",
            "prompt_logprobs_worker",
            "adaptive_verification",
            "sampler",
            "kv_block_zeroer",
        ):
            setattr(runner, name, None)
        encoder = self._encoder = object.__new__(vllm.EncoderRunner)
        encoder.encoder_cache, encoder.device, encoder.is_realtime = self._cache, vllm.torch.device("cpu"), False

    def execute(self, plan: Any, features: Mapping[str, Sequence[Any]]) -> State:
        """Take a step in."""
        runner, slots, cache = self._runner, self._slots, self._cache
        for take in (runner.finish_requests, runner.free_states, runner.add_requests, runner.update_requests):
            take(plan)
        _load(self._vllm, plan, cache.encoder_outputs, features)
        encoded: list[str] = []
        runs = _runs(plan, cache.mm_features, cache.encoder_outputs)
        for name, inputs in plan.scheduled_encoder_inputs.items():
            # One by one: within a batch the release does not see what the batch itself will leave.
            for index in inputs:
                span = cache.mm_features[name][index].mm_position
                for key, (_, item) in zip(*self._encoder.prepare_mm_inputs({name: [index]}), strict=True):
                    _encode(self._vllm, cache.encoder_outputs, encoded, key, item, span)
        names = list(plan.num_scheduled_tokens)
        rows = [slots.req_id_to_index[name] for name in names]
        chunks = [
            (name, int(slots.num_computed_tokens_np[row]), plan.num_scheduled_tokens[name])
            for name, row in zip(names, rows, strict=True)
        ]
        gather = (lambda: self._gather(plan, names, rows)) if names and not self._only_encodes else None
        missed, splices = _gathered(gather, chunks, cache.mm_features, cache.encoder_outputs)
        requests: State = {
            name: [list(self._tables[row]), int(slots.num_computed_tokens_np[row]), _kinds(cache.mm_features[name])]
            for name, row in zip(names, rows, strict=True)
        }
        state = state_after(plan, requests, slots.req_id_to_index, cache.encoder_outputs, encoded, missed)
        return state | {"runs": runs, "splices": splices}

    def reset_encoder_cache(self) -> None:
        """Drop all embeddings."""
        self._cache.reset_encoder_cache()

    def sampled(self, tokens: Tokens) -> None:
        """What the step yielded; the v2 runner keeps it on the device."""

    def _gather(self, plan: Any, names: list[str], rows: list[int]) -> Any:
        vllm, slots = self._vllm, self._slots
        counts = vllm.array([plan.num_scheduled_tokens[name] for name in names])
        starts = vllm.array([0, *vllm.cumsum(counts)])
        computed, lengths = slots.num_computed_tokens_np[rows], slots.prefill_len.np[rows]
        return self._encoder.gather_mm_embeddings(names, int(counts.sum()), counts, starts, lengths, computed)

    def _append(self, row: int, block_ids: Sequence[Sequence[int]], *, overwrite: bool) -> None:
        if overwrite:
            self._tables[row] = []
        self._tables[row] += block_ids[0]


class _Slots:
    """What stands for the v2 runner's request table, whose columns lie on a device."""

    def __init__(self, vllm: Any, num_rows: int = 64) -> None:
        self.req_id_to_index: dict[str, int] = {}
        self._free = list(range(num_rows))
        self.num_computed_tokens_np = vllm.array([0] * num_rows)
        self.num_computed_prefill_tokens = vllm.array([0] * num_rows)
        self.prefill_len = StandIn(np=vllm.array([0] * num_rows))
        self.apply_staged_writes = _nothing

    def add_request(self, req_id: str, all_token_ids: Sequence[int], num_computed_tokens: int, **_: Any) -> None:
        row = self.req_id_to_index[req_id] = self._free.pop()
        self.num_computed_tokens_np[row] = num_computed_tokens
        self.prefill_len.np[row] = len(all_token_ids)

    def remove_request(self, req_id: str) -> int | None:
        row = self.req_id_to_index.pop(req_id, None)
        if row is not None:
            self._free.append(row)
        return row


def state_after(
    plan: Any, requests: State, kept: Iterable[str], embeddings: Any, encoded: Sequence[str], missed: str
) -> State:
    """A runner after a step, in the form that is compared."""
    others = sorted(set(kept) - set(plan.num_scheduled_tokens))
    return {
        "requests": requests,
        "others": others,
        "embeddings": sorted(embeddings),
        "encoded": sorted(encoded),
        "missed": missed,
    }


def _kinds(features: Sequence[Any]) -> list[str]:
    return [payload_kind_of(one.data) for one in features]


def _load(vllm: Any, plan: Any, embeddings: Any, features: Mapping[str, Sequence[Any]]) -> None:
    """What an EC connector does at the start of a step: each embedding is as large as the first request of the step needs it."""
    metadata = plan.ec_connector_metadata
    wanted = [one.mm_hash for one in metadata.mm_datas] if metadata is not None else []
    names = [*plan.num_scheduled_tokens, *features]
    spans: dict[str, Any] = {}
    for one in (item for name in names for item in features.get(name, ())):
        spans.setdefault(one.identifier, one.mm_position)
    embeddings.update({key: _embedding(vllm, spans[key]) for key in wanted})


def _encode(vllm: Any, embeddings: Any, encoded: list[str], identifier: str, item: Any, span: Any) -> None:
    """Run the encoder, which fails without pixels; as its engine is lost then, what it leaves is nothing."""
    if payload_kind_of(item) == "full":
        embeddings[identifier] = _embedding(vllm, span)
        encoded.append(identifier)


def _embedding(vllm: Any, span: Any) -> Any:
    """An embedding whose rows are their numbers."""
    return vllm.torch.arange(span.get_num_embeds()).unsqueeze(1)


def _runs(plan: Any, features: Mapping[str, Sequence[Any]], skipped: Container[str]) -> list[EncoderRun]:
    """What is held for the encoder runs of a step, but for those whose embeddings a runner has and does not make again."""
    return [
        EncoderRun(name, index, payload_kind_of(features[name][index].data))
        for name, indices in plan.scheduled_encoder_inputs.items()
        for index in indices
        if features[name][index].identifier not in skipped
    ]


Chunk = tuple[str, int, int]
"""A request of the batch, the tokens that it has computed, and those that the step computes."""


def _gathered(
    gather: Callable[[], Any] | None,
    chunks: Sequence[Chunk],
    features: Mapping[str, Sequence[Any]],
    embeddings: Mapping[str, Any],
) -> tuple[str, list[Splice]]:
    """The first embedding that is not there, and what is spliced in where."""
    if gather is None:
        return "", []
    try:
        gathered, mask = gather()
    except RuntimeError as error:
        matched = _MISS.search(str(error))
        if matched is None:
            raise
        missing = (
            Splice(name, index, low, high, [], [], None)
            for name, index, low, high, item in _overlaps(chunks, features)
            if item.identifier == matched[1]
        )
        return matched[1], [next(missing)]
    rows = [int(row[0]) for part in gathered for row in part]
    flags = mask.tolist()
    begins = dict(
        zip([name for name, _, _ in chunks], accumulate([0, *(count for _, _, count in chunks)]), strict=False)
    )
    computed = {name: start for name, start, _ in chunks}
    splices: list[Splice] = []
    taken = 0
    for name, index, low, high, item in _overlaps(chunks, features):
        shift = begins[name] - computed[name]
        places = [place for place in range(low, high) if flags[shift + place]]
        if places:
            entry = embeddings.get(item.identifier)
            num_rows = None if entry is None else len(entry)
            splices.append(Splice(name, index, low, high, places, rows[taken : taken + len(places)], num_rows))
            taken += len(places)
    return "", splices


def _overlaps(
    chunks: Sequence[Chunk], features: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, int, int, int, Any]]:
    """Items of which a chunk computes tokens, with the tokens."""
    for name, start, count in chunks:
        for index, item in enumerate(features[name]):
            span = item.mm_position
            low, high = max(start, span.offset), min(start + count, span.offset + span.length)
            if low < high:
                yield name, index, low, high, item


def _nothing(*_: Any, **__: Any) -> None:
    """What a stand-in does."""
