"""Laws of streaming sessions, resets and pauses on random workloads, judged by a worker that keeps what real workers keep."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.plan import StepPlan
from epdsim.core.positions import ONE_D
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun, joined_prompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import PauseState, Scheduler
from epdsim.core.workers.content import TrueRequest
from epdsim.core.workers.drafts import DraftingWorker
from epdsim.core.workers.worker import Worker, token_of

MASKS = {"x": None, "y": bytes([1, 0, 1]), "z": bytes([0, 0, 1, 1, 0]), "w": None}
LENGTHS = {"x": 2, "y": 3, "z": 5, "w": 4}
DATA = {
    name: MediaItem(
        {
            "pixels": Field(TensorHandle("uint8", (3,), digest=name), BatchedKind()),
            "grid": Field(TensorHandle("int64", (3,)), BatchedKind(True)),
        }
    )
    for name in MASKS
}
SLOTS = 56
"""Tokens that the pool holds."""


@dataclass
class Workload:
    config: SchedulerConfig
    requests: list[tuple[int, Request]]
    updates: list[tuple[int, str, StreamingUpdate | None]]
    aborts: dict[int, str]
    events: dict[int, str]
    dialect: Dialect = IDEAL


@st.composite
def inputs(draw: st.DrawFn, limit: int) -> tuple[TokenPrompt, tuple[MediaFeature, ...]]:
    tokens: list[int] = []
    features: list[MediaFeature] = []
    for part in draw(st.lists(st.sampled_from([1, 2, "x", "y", "z", "w"]), min_size=1, max_size=4)):
        length = draw(st.integers(1, 4)) if isinstance(part, int) else LENGTHS[part]
        if len(tokens) + length > limit:
            continue
        if isinstance(part, str):
            span = PlaceholderRange(len(tokens), length, MASKS[part])
            features.append(MediaFeature("image", part, span, DATA[part]))
        tokens += [part if isinstance(part, int) else 9] * length
    return TokenPrompt(tokens or [1]), tuple(features)


@st.composite
def drafting(draw: st.DrawFn, config: SchedulerConfig) -> SchedulerConfig:
    """Settings with a drafter or without, and with block-aligned chunks or without."""
    if not config.disable_chunked_mm_input:
        config = replace(config, mamba_block_aligned_split=draw(st.sampled_from([False, False, True])))
    method = draw(st.sampled_from(["none", "none", "ngram", "draft_model", "eagle", "mtp", "dflash"]))
    if method == "none":
        return config
    most = min(3, config.block_size) if method == "mtp" else 3
    config = replace(
        config,
        speculative_method=method,
        num_speculative_tokens=draw(st.integers(1, most)),
        max_num_batched_tokens=config.max_num_batched_tokens + 3,
    )
    spare = 2 * config.num_speculative_tokens + config.drafter.num_lookahead
    return replace(config, num_gpu_blocks=config.num_gpu_blocks + -(-spare // config.block_size))


@st.composite
def workloads(draw: st.DrawFn, *, has_events: bool = True, has_drafts: bool = False, **settings_: object) -> Workload:
    size = draw(st.sampled_from([1, 2, 4]))
    chosen: dict[str, object] = {
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "model_runner": draw(st.sampled_from(["v1", "v2"])),
        "disable_chunked_mm_input": draw(st.sampled_from([False, False, True])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "strip": draw(st.sampled_from(["admission", "admission", "resend", "deferred", "off"])),
    }
    config = SchedulerConfig(
        block_size=size,
        num_gpu_blocks=SLOTS // size + 1,
        max_num_batched_tokens=draw(st.integers(6, 14)),
        max_num_seqs=draw(st.integers(1, 4)),
        max_model_len=256,
        encoder_cache_size=draw(st.integers(4, 9)),
        max_num_encoder_input_tokens=draw(st.integers(4, 8)),
        **chosen | settings_,
    )
    if has_drafts:
        config = draw(drafting(config))
    requests: list[tuple[int, Request]] = []
    updates: list[tuple[int, str, StreamingUpdate | None]] = []
    for number in range(draw(st.integers(1, 5))):
        name, at, room = f"r{number}", draw(st.integers(0, 10)), SLOTS + 1
        prompt, features = draw(inputs(20))
        stops = draw(st.sampled_from([frozenset[int](), frozenset({1})]))
        is_session = draw(st.sampled_from([True, True, False]))
        request = Request(name, prompt, draw(st.integers(1, 6)), features, draw(st.integers(0, 2)), float(number))
        request = Request(*_fields(request), stop_token_ids=stops, resumable=is_session)
        requests.append((at, request))
        room -= prompt.num_tokens + request.max_tokens
        for _ in range(draw(st.integers(0, 4)) if is_session else 0):
            prompt, features = draw(inputs(12))
            max_tokens = draw(st.integers(1, 4))
            room -= prompt.num_tokens + max_tokens
            if room < 0:
                break
            at += draw(st.integers(0, 6))
            time = float(draw(st.integers(0, 9)))
            updates.append((at, name, StreamingUpdate(name, prompt, max_tokens, features, time, stops)))
        if is_session:
            updates.append((at + draw(st.integers(0, 8)), name, None))
    steps = st.integers(0, 24)
    aborts = {draw(steps): f"r{draw(st.integers(0, 4))}" for _ in range(draw(st.integers(0, 1)) if has_events else 0)}
    kinds = st.sampled_from(["running", "prefix", "encoder", *PauseState.__members__])
    events = draw(st.dictionaries(steps, kinds, max_size=4)) if has_events else {}
    if has_events:
        events[26] = "UNPAUSED"
    return Workload(config, requests, updates, aborts, events)


def _fields(request: Request) -> tuple[object, ...]:
    return (
        request.request_id,
        request.prompt,
        request.max_tokens,
        request.mm_features,
        request.priority,
        request.arrival_time,
    )


def turns_of(workload: Workload, request: Request) -> list[list[int]]:
    """The output of each turn of a request that nothing ever happens to."""
    true = TrueRequest(request, ONE_D)
    turns: list[list[int]] = []
    mine = [update for _, name, update in workload.updates if name == request.request_id and update is not None]
    for update in [None, *mine]:
        if update is not None:
            true.keep_outputs(len(true.outputs) - 1)
            true.grow(update)
        while len(true.outputs) < true.request.max_tokens:
            true.outputs.append(token_of(true.tags(true.num_tokens)[true.num_tokens - 1]))
            if true.outputs[-1] in true.request.stop_token_ids:
                break
        turns.append(list(true.outputs))
    return turns


@dataclass
class Run:
    """A workload under way on scheduler and worker."""

    workload: Workload
    scheduler: Scheduler = field(init=False)
    worker: Worker = field(init=False)
    turns: dict[str, list[list[int]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    waiting_inputs: dict[str, deque[StreamingUpdate]] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    number: int = 0
    under_way: deque[tuple[StepPlan, dict[str, list[int]]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.workload.config, self.workload.dialect)
        config = self.workload.config
        self.worker = DraftingWorker(config) if config.drafter.num_drafts else Worker(config)
        for _, request in self.workload.requests:
            name = request.request_id
            self.worker.add_request(request)
            self.turns[name], self.counts[name], self.waiting_inputs[name] = [], 0, deque()

    @property
    def is_over(self) -> bool:
        work = self.workload
        last = max([*(at for at, _ in work.requests), *(at for at, *_ in work.updates), *work.events])
        return self.number > last and not self.scheduler.has_unfinished

    def step(self) -> StepPlan:
        self._happenings()
        plan = self.scheduler.schedule()
        assert plan.total_num_scheduled_tokens <= self.workload.config.max_num_batched_tokens
        assert self.scheduler.num_running + len(self.idle & self._alive()) <= self.workload.config.max_num_seqs
        rows = [row.request_id for row in (*plan.new, *plan.cached)]
        assert sorted(rows) == sorted(plan.num_scheduled_tokens), "each scheduled request is told once"
        done = self.worker.execute(plan)
        assert not done.violations, "; ".join(map(str, done.violations))
        self.under_way.append((plan, dict(done.sampled)))
        if len(self.under_way) > self.workload.config.async_scheduling:
            self._hear(*self.under_way.popleft())
        if isinstance(self.worker, DraftingWorker) and not self.workload.config.async_scheduling:
            self.scheduler.update_draft_tokens(self.worker.num_drafts)
        self.number += 1
        return plan

    def _alive(self) -> set[str]:
        return set(self.scheduler.running) | set(self.scheduler.waiting)

    def _happenings(self) -> None:
        for at, request in self.workload.requests:
            if at == self.number:
                self.scheduler.add_request(request)
        for at, name, update in self.workload.updates:
            if at == self.number:
                self._send(name, update)
        if self.number in self.workload.aborts:
            self.scheduler.finish_requests([self.workload.aborts[self.number]])
        match self.workload.events.get(self.number):
            case None:
                pass
            case "encoder":
                self.scheduler.reset_encoder_cache()
                self.worker.reset_encoder_cache()
            case "prefix":
                self.scheduler.reset_prefix_cache()
            case "running":
                for name in self.scheduler.running:
                    self.worker.keep_outputs(name, self.counts[name])
                is_ideal = self.workload.dialect is IDEAL
                assert self.scheduler.reset_prefix_cache(reset_running_requests=True) or not is_ideal
            case pause:
                self.scheduler.set_pause_state(PauseState[pause])

    def _send(self, name: str, update: StreamingUpdate | None) -> None:
        if update is None:
            self.scheduler.close_session(name)
        elif self.scheduler.add_update(update):
            self.waiting_inputs[name].append(update)
            if name in self.idle:
                self._go_on(name)

    def _go_on(self, name: str) -> None:
        if self.waiting_inputs[name]:
            self.worker.add_update(self.waiting_inputs[name].popleft())
            self.idle.discard(name)
        else:
            self.idle.add(name)

    def _hear(self, plan: StepPlan, sampled: dict[str, list[int]]) -> None:
        outcome = self.scheduler.update_from_output(plan, sampled)
        for name, count in outcome.new_tokens.items():
            self.counts[name] += count
        for name in (*outcome.finished, *outcome.turned):
            self.turns[name].append(self.worker.outputs(name)[: self.counts[name]])
            if name in outcome.turned:
                self.worker.keep_outputs(name, self.counts[name] - 1)
                self.counts[name] = 0
                self._go_on(name)


@pytest.mark.engine_law
@settings(max_examples=250)
@given(workloads(has_drafts=True))
def test_sessions_end_as_if_nothing_had_happened(workload: Workload) -> None:
    """TOK-CONS, KV content, ENC-HIT and STRIP-AVAIL at every step; at the end LIVE-PROG, SES-EQ and RECOMP-EQ."""
    run = Run(workload)
    plans: list[StepPlan] = []
    while not run.is_over:
        plans.append(run.step())
        assert len(plans) < 800, "LIVE-PROG"
    aborted = set(workload.aborts.values())
    for _, request in workload.requests:
        wanted, got = turns_of(workload, request), run.turns[request.request_id]
        assert got == wanted or (request.request_id in aborted and got == wanted[: len(got)])
        if len(got) > 2:
            event("a session had three turns")
    engine = run.scheduler._engine
    assert (run.scheduler.free_blocks, engine.num_streaming) == (workload.config.num_gpu_blocks - 1, 0)
    assert not any(engine.encoder_cache.users(identifier) for identifier in engine.encoder_cache.entries)
    if any(plan.preempted for plan in plans):
        event("a request was preempted")


@pytest.mark.engine_law
@settings(max_examples=100)
@given(workloads(policy="fcfs", model_runner="v2", strip="admission"))
def test_steps_of_the_release_are_sound_if_they_come(workload: Workload) -> None:
    """The release may leave sessions waiting for ever; what it computes is right."""
    workload.dialect = named("vllm-0.32")
    run = Run(workload)
    while not run.is_over and run.number < 120:
        run.step()
    for _, request in workload.requests:
        got = run.turns[request.request_id]
        assert got == turns_of(workload, request)[: len(got)]


@pytest.mark.engine_law
@settings(max_examples=80)
@given(workloads(has_events=False, async_scheduling=False), st.data())
def test_strides_and_clones_of_sessions_are_exact(workload: Workload, data: st.DataObject) -> None:
    """FWD-EQ, and clones that do not show in each other."""
    scheduler, step = Scheduler(workload.config), 0
    happenings = sorted({*(at for at, _ in workload.requests), *(at for at, *_ in workload.updates)})
    while step <= happenings[-1] or scheduler.has_unfinished:
        for at, request in workload.requests:
            if at == step:
                scheduler.add_request(request)
        for at, name, update in workload.updates:
            if at == step:
                scheduler.close_session(name) if update is None else scheduler.add_update(update)
        room = min([at - step for at in happenings if at > step], default=99)
        count = data.draw(st.integers(0, min(room, scheduler.steady_steps())))
        slow, before = scheduler.clone(), scheduler.fingerprint()
        if not count:
            scheduler.update_from_output(scheduler.schedule())
            assert slow.fingerprint() == before
            step += 1
            continue
        ended: list[str] = []
        for _ in range(count):
            outcome = slow.update_from_output(slow.schedule())
            ended += [*outcome.finished, "turns", *outcome.turned]
        assert scheduler.fingerprint() == before
        at_once = scheduler.take_steps(count)
        assert [*at_once.finished, *at_once.turned] == [one for one in ended if one != "turns"]
        assert scheduler.fingerprint() == slow.fingerprint()
        assert scheduler._engine.pool.free_queue() == slow._engine.pool.free_queue()
        step += count
        assert step < 900, "LIVE-PROG"


runs = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=3)


@settings(max_examples=200)
@given(st.lists(st.tuples(runs, st.integers(1, 9), st.booleans()), min_size=1, max_size=4), st.sampled_from([1, 2, 4]))
def test_a_session_has_the_keys_of_one_request_with_all_its_input(
    turns: list[tuple[list[tuple[str, int, int]], int, bool]], size: int
) -> None:
    """SES-EQ and KEY-PARITY, for prompts without ids: however the input came, equal content has equal keys."""
    table = BlockKeyTable()
    features: tuple[MediaFeature, ...] = ()
    keys: RequestKeys | None = None
    prompt = RunPrompt([])
    num_outputs = num_named = 0
    for parts, max_tokens, has_item in turns:
        added = RunPrompt([TokenRun(*part) for part in parts])
        if keys is not None:
            kept = RunPrompt([TokenRun(("output", "s"), num_named, num_outputs - 1)])
            num_named += num_outputs
            prompt = joined_prompt(prompt, kept)
        base = prompt.num_tokens
        item = MediaFeature("image", "x", PlaceholderRange(base, min(3, added.num_tokens)))
        features = (*features, item) if has_item else features
        prompt = joined_prompt(prompt, added)
        if keys is None:
            keys = RequestKeys(table, Request("s", prompt, 1, features), size, IDEAL)
        else:
            keys.grow(num_outputs - 1, added, features)
        num_outputs = max_tokens
        keys.upto((prompt.num_tokens + num_outputs - 1) // size)
        whole = RequestKeys(table, Request("whole", prompt, 1, features), size, IDEAL)
        count = prompt.num_tokens // size
        assert keys.keys[:count] == whole.upto(count)[:count]
