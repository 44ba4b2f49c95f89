"""Laws of the two modes in which the media encoder stands apart: encoder-decoder models, and engines that only encode."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import StepPlan
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

SIZES = {"x": 2, "y": 3, "z": 5}
DATA = MediaItem({"sound": Field(TensorHandle("uint8", (3,)), BatchedKind())})
RELEASE = named("vllm-0.32")


@dataclass
class Workload:
    config: SchedulerConfig
    dialect: Dialect
    arrivals: list[tuple[int, Request]]
    aborts: dict[int, str] = field(default_factory=dict)


def item(name: str, offset: int) -> MediaFeature:
    return MediaFeature("audio", name, PlaceholderRange(offset, SIZES[name]), DATA)


@st.composite
def across(draw: st.DrawFn, *, dialects: tuple[Dialect, ...] = (IDEAL, RELEASE), **settings_: object) -> Workload:
    """An encoder-decoder model: 0 to 2 items of each request beside its prompt."""
    size = draw(st.sampled_from([1, 2, 4]))
    config = SchedulerConfig(
        block_size=size,
        num_gpu_blocks=draw(st.integers(20, 34)) // size + 5,
        max_num_batched_tokens=draw(st.integers(16, 24)),
        max_num_seqs=draw(st.integers(1, 4)),
        max_model_len=16,
        encoder_cache_size=draw(st.integers(10, 12)),
        max_num_encoder_input_tokens=draw(st.integers(10, 12)),
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=draw(st.booleans()),
        model_runner=draw(st.sampled_from(["v1", "v2"])),
        disable_chunked_mm_input=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        is_encoder_decoder=True,
    )
    config = replace(config, **settings_)
    room = min((config.num_gpu_blocks - 1 - 10 // size - 2) * size, 15)
    arrivals: list[tuple[int, Request]] = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, max(1, room // 2)))
        names = draw(st.lists(st.sampled_from(sorted(SIZES)), max_size=2))
        request = Request(
            f"r{number}",
            TokenPrompt([1] * length),
            draw(st.integers(1, max(1, room - length))),
            tuple(item(name, 0) for name in names),
            priority=draw(st.integers(0, 2)),
            arrival_time=float(draw(st.integers(0, 3))),
        )
        arrivals.append((draw(st.integers(0, 10)), request))
    aborts = {draw(st.integers(0, 12)): f"r{draw(st.integers(0, 5))}" for _ in range(draw(st.integers(0, 2)))}
    return Workload(config, draw(st.sampled_from(dialects)), arrivals, aborts)


@st.composite
def encoders(draw: st.DrawFn, **settings_: object) -> Workload:
    """An engine that only encodes, an EC producer, some of whose items stand in the store."""
    config = SchedulerConfig(
        block_size=4,
        num_gpu_blocks=2,
        max_num_batched_tokens=draw(st.integers(5, 12)),
        max_num_seqs=draw(st.integers(1, 4)),
        max_model_len=64,
        encoder_cache_size=draw(st.integers(5, 9)),
        max_num_encoder_input_tokens=draw(st.integers(5, 8)),
        enable_prefix_caching=False,
        enable_chunked_prefill=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=draw(st.booleans()),
        model_runner=draw(st.sampled_from(["v1", "v2"])),
        disable_chunked_mm_input=draw(st.booleans()),
        ec_role="producer",
        mm_encoder_only=True,
    )
    config = replace(config, **settings_)
    arrivals: list[tuple[int, Request]] = []
    for number in range(draw(st.integers(1, 6))):
        tokens: list[int] = []
        features: list[MediaFeature] = []
        for part in draw(st.lists(st.sampled_from([1, 2, *sorted(SIZES)]), min_size=1, max_size=8)):
            if isinstance(part, str):
                features.append(item(part, len(tokens)))
            tokens += [9] * SIZES[part] if isinstance(part, str) else [part] * draw(st.integers(1, 4))
        request = Request(
            f"r{number}",
            TokenPrompt(tokens),
            draw(st.sampled_from([1, 1, 5])),
            tuple(features),
            priority=draw(st.integers(0, 2)),
            remote_embeds=frozenset(draw(st.sampled_from(["", "x", "yz"]))),
        )
        arrivals.append((draw(st.integers(0, 10)), request))
    return Workload(config, IDEAL, arrivals)


class Blocks:
    """Content of KV blocks, by slot: who wrote what, so that reuse of a block that is still needed shows."""

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.slots: dict[tuple[int, int], object] = {}

    def write(self, table: list[int], start: int, contents: list[object]) -> None:
        for place, content in enumerate(contents, start):
            self.slots[table[place // self.size], place % self.size] = content

    def read(self, table: list[int], count: int) -> list[object]:
        return [self.slots.get((table[place // self.size], place % self.size)) for place in range(count)]


class Decoder:
    """A worker of an encoder-decoder model: self attention by position, cross attention by embedding."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.blocks = Blocks(config.block_size)
        self.capacity = config.encoder_cache_size
        self.requests: dict[str, Request] = {}
        self.tables: dict[str, list[int]] = {}
        self.across: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.embeddings: Counter[str] = Counter()

    def embeds(self, name: str) -> list[object]:
        return [
            (name, index, at)
            for index, one in enumerate(self.requests[name].mm_features)
            for at in range(one.position.num_embeds)
        ]

    def execute(self, plan: StepPlan, *, is_bounded: bool) -> None:
        self.embeddings.subtract(Counter(plan.free_encoder_mm_hashes))
        for row in (*plan.new, *(row for row in plan.cached if row.resumed)):
            name = row.request_id
            self.tables[name] = list(getattr(row, "block_ids", None) or row.new_block_ids)
            self.across[name], self.computed[name] = list(row.cross_block_ids), row.num_computed_tokens
            assert not row.num_computed_tokens, "nothing is shared"
            assert list(plan.scheduled_encoder_inputs.get(name, ())) == list(
                range(len(self.requests[name].mm_features))
            )
            self.blocks.write(self.across[name], 0, self.embeds(name))
        first = {row.request_id for row in (*plan.new, *(row for row in plan.cached if row.resumed))}
        assert set(plan.scheduled_encoder_inputs) <= first, "items are encoded with the first step only"
        for row in plan.cached:
            if not row.resumed:
                assert not row.cross_block_ids
                self.tables[row.request_id] += row.new_block_ids or ()
                assert self.computed[row.request_id] == row.num_computed_tokens, "TOK-CONS"
        for name, inputs in plan.scheduled_encoder_inputs.items():
            self.embeddings.update(self.requests[name].mm_features[index].identifier for index in inputs)
        if is_bounded:
            held = sum(SIZES[name] * count for name, count in self.embeddings.items())
            assert held <= self.capacity, "the workers hold more embeddings than the cache has room for"
        for name, count in plan.num_scheduled_tokens.items():
            start, end = self.computed[name], self.computed[name] + count
            self.computed[name] = end
            self.blocks.write(self.tables[name], start, [(name, place) for place in range(start, end)])
        for name in plan.num_scheduled_tokens:
            end = self.computed[name]
            assert self.blocks.read(self.tables[name], end) == [(name, place) for place in range(end)], "self attention"
            assert self.blocks.read(self.across[name], len(self.embeds(name))) == self.embeds(name), "cross attention"


def play(workload: Workload, each: Callable[[Scheduler, StepPlan], None]) -> tuple[Scheduler, dict[str, int]]:
    """Run a workload to its end; `each` sees every plan before its output is handed in."""
    config = workload.config
    scheduler = Scheduler(config, workload.dialect)
    outputs = {request.request_id: 0 for _, request in workload.arrivals}
    under_way: deque[StepPlan] = deque()
    last = max(at for at, _ in workload.arrivals)
    number = 0
    while number <= last or scheduler.has_unfinished:
        for at, request in workload.arrivals:
            if at == number:
                scheduler.add_request(request)
        if number in workload.aborts:
            scheduler.finish_requests([workload.aborts[number]])
        plan = scheduler.schedule()
        assert plan.total_num_scheduled_tokens <= config.max_num_batched_tokens
        assert len(plan.num_scheduled_tokens) <= config.max_num_seqs
        each(scheduler, plan)
        under_way.append(plan)
        if len(under_way) > config.async_scheduling:
            for name, count in scheduler.update_from_output(under_way.popleft()).new_tokens.items():
                outputs[name] += count
        number += 1
        assert number < 800, "LIVE-PROG"
    return scheduler, outputs


@pytest.mark.engine_law
@settings(max_examples=150)
@given(across())
def test_cross_attention_reads_what_was_written_for_it(workload: Workload) -> None:
    """KV content of both kinds of blocks, TOK-CONS, KV-CONS, and in the ideal ENC-CONS and the room of the workers."""
    worker = Decoder(workload.config)
    worker.requests = {request.request_id: request for _, request in workload.arrivals}
    is_ideal = workload.dialect is IDEAL

    def each(scheduler: Scheduler, plan: StepPlan) -> None:
        worker.execute(plan, is_bounded=is_ideal)
        if plan.preempted:
            event("a request was preempted")
        engine = scheduler._engine
        pool, cache = engine.pool, engine.encoder_cache
        users = Counter(block for state in engine.requests.values() for block in (*state.blocks, *state.cross_blocks))
        assert all(count == 1 for count in users.values()), "nothing is shared"
        assert sorted([*pool.free_queue(), *users]) == list(range(1, pool.num_blocks))
        if is_ideal:
            held = sum(
                SIZES[state.features[index].identifier]
                for state in engine.requests.values()
                for index in cache.held(state.request_id)
            )
            assert cache.num_free + held == cache.capacity

    scheduler, outputs = play(workload, each)
    assert scheduler.free_blocks == workload.config.num_gpu_blocks - 1
    for _, request in workload.arrivals:
        assert outputs[request.request_id] == request.max_tokens or request.request_id in workload.aborts.values()
    assert scheduler._engine.encoder_cache.num_free == workload.config.encoder_cache_size or not is_ideal


@pytest.mark.engine_law
@settings(max_examples=60)
@given(across(dialects=(IDEAL,), async_scheduling=False), st.integers(1, 9))
def test_many_decode_steps_at_once_equal_them_one_by_one(workload: Workload, most: int) -> None:
    """FWD-EQ, with blocks for cross attention held meanwhile."""

    def each(scheduler: Scheduler, plan: StepPlan) -> None:
        one, other = scheduler.clone(), scheduler.clone()
        for engine in (one, other):
            engine.update_from_output(plan)
        assert one.fingerprint() == other.fingerprint()
        count = min(most, one.steady_steps())
        if count:
            event("steps were taken at once")
            one.take_steps(count)
            for _ in range(count):
                other.update_from_output(other.schedule())
            assert one.fingerprint() == other.fingerprint()

    play(workload, each)


@pytest.mark.engine_law
@settings(max_examples=150)
@given(encoders())
def test_an_encoder_ends_a_request_when_all_of_it_is_encoded(workload: Workload) -> None:
    """EC-READY and TOK-CONS: no KV block is taken, nothing beyond the prompt is planned, and who ended has all embeddings saved."""
    requests = {request.request_id: request for _, request in workload.arrivals}
    saved: set[str] = set().union(*(request.remote_embeds for request in requests.values()))
    planned: Counter[str] = Counter()
    under_way: deque[set[str]] = deque()
    ended: list[str] = []

    def each(scheduler: Scheduler, plan: StepPlan) -> None:
        for name in plan.finished:
            assert {one.identifier for one in requests[name].mm_features} <= saved, (
                f"{name} ended before it was encoded"
            )
        ended.extend(plan.finished)
        planned.update(plan.num_scheduled_tokens)
        assert not plan.samples
        assert not plan.preempted
        assert all(not row.block_ids for row in plan.new)
        assert all(row.new_block_ids is None for row in plan.cached)
        assert scheduler.free_blocks == workload.config.num_gpu_blocks - 1
        assert scheduler.steady_steps() == 0
        inputs = plan.scheduled_encoder_inputs.items()
        under_way.append(
            {requests[name].mm_features[index].identifier for name, indices in inputs for index in indices}
        )
        if len(under_way) > workload.config.async_scheduling:
            saved.update(under_way.popleft())

    scheduler, outputs = play(workload, each)
    ended.extend(scheduler._engine.finished)
    assert sorted(ended) == sorted(requests)
    assert planned == {name: request.prompt.num_tokens for name, request in requests.items()}
    assert not any(outputs.values())
    assert scheduler._engine.encoder_cache.num_freeable == workload.config.encoder_cache_size
