"""Preemption, abort and resumption: who loses, what comes back, what the workers hear."""

import pytest

from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.encoder import choose_encoder_inputs, take_encoder_inputs
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.preemption import preempt_one
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.scheduler.state import RequestState


def scheduler(**settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 6,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings))


def test_the_last_to_come_loses_its_blocks_and_waits_in_front(text) -> None:
    engine = scheduler()
    for name in "ab":
        engine.add_request(text(name, 8, 8))
    engine.add_request(text("c", 8, 8))
    engine.update_from_output(engine.schedule())
    plan = engine.schedule()  # each needs its third block, and one is left
    assert dict(plan.num_scheduled_tokens) == {"a": 1}
    assert list(plan.preempted) == ["b"]
    assert (engine.running, engine.waiting) == (["a"], ["b", "c"])
    assert not plan.new, "nobody is admitted in a step that preempts"


def test_a_request_may_have_to_preempt_itself(text) -> None:
    engine = scheduler(num_gpu_blocks=5)
    for name in "ab":
        engine.add_request(text(name, 8, 8))
    engine.update_from_output(engine.schedule())
    plan = engine.schedule()
    assert dict(plan.num_scheduled_tokens) == {"a": 1}
    assert engine.running == ["a"]


def test_under_priorities_the_least_urgent_loses_even_after_it_was_scheduled(text) -> None:
    engine = scheduler(policy="priority", num_gpu_blocks=7, max_num_batched_tokens=24)
    engine.add_request(text("slow", 5, 9, priority=5))
    engine.update_from_output(engine.schedule())
    engine.add_request(text("urgent", 8, 9, priority=0, arrival_time=2.0))
    engine.add_request(text("later", 8, 9, priority=0, arrival_time=3.0))
    engine.update_from_output(engine.schedule())
    assert engine.running == ["slow", "urgent", "later"]
    plan = engine.schedule()
    assert list(plan.preempted) == ["slow"]
    assert dict(plan.num_scheduled_tokens) == {"urgent": 1, "later": 1}
    assert [row.request_id for row in plan.cached] == ["urgent", "later"]
    assert plan.samples == ["urgent", "later"]
    assert plan.total_num_scheduled_tokens == 2


def test_among_equally_urgent_the_last_to_arrive_loses_wherever_it_runs(text) -> None:
    engine = scheduler(policy="priority", num_gpu_blocks=5)
    engine.add_request(text("young", 8, 8, arrival_time=2.0))
    engine.update_from_output(engine.schedule())
    engine.add_request(text("old", 4, 12, arrival_time=1.0))
    engine.update_from_output(engine.schedule())
    assert engine.running == ["young", "old"]
    plan = engine.schedule()
    assert (list(plan.preempted), engine.running) == (["young"], ["old"])


def test_what_a_victim_got_in_the_step_comes_back(image) -> None:
    engine = EngineState(SchedulerConfig(), IDEAL, None)
    request = Request("a", TokenPrompt([1] * 9), 2, (image("x", 2, 6, [1, 0, 1, 0, 1, 1]),))
    state = RequestState(request, RequestKeys(engine.table, request, 16, IDEAL), (4,), 64)
    draft = StepDraft(engine)
    before = (draft.tokens, draft.encoder_embeds)
    choice = choose_encoder_inputs(engine, draft, state, 0, 9)
    draft.spend(state, 9)
    take_encoder_inputs(engine, draft, state, choice)
    assert (draft.tokens, draft.encoder_embeds) == (before[0] - 9, before[1] - 4)
    assert (draft.samples, state.num_in_flight) == (["a"], 9)
    draft.take_back(state)
    assert (draft.tokens, draft.encoder_embeds) == before
    assert (draft.num_scheduled, draft.encoder_inputs, draft.samples, state.num_in_flight) == ({}, {}, [], 0)


@pytest.mark.parametrize(("release", "num_left"), [("ideal", 4), ("vllm-0.32", 0)])
def test_encoder_budget_that_comes_back_is_left_for_others(image, release: str, num_left: int) -> None:
    """Of 8 embeddings the victim took 4; the needy one chose 4 before it found that it lacks blocks."""
    dialect = named(release)
    engine = EngineState(SchedulerConfig(max_num_encoder_input_tokens=8), dialect, None)
    draft = StepDraft(engine)
    states = []
    for name in ("victim", "needy"):
        request = Request(name, TokenPrompt([1] * 9), 2, (image(name, 2, 4),))
        states.append(RequestState(request, RequestKeys(engine.table, request, 16, dialect), (4,), 64))
    victim, needy = states
    draft.spend(victim, 9)
    take_encoder_inputs(engine, draft, victim, choose_encoder_inputs(engine, draft, victim, 0, 9))
    choice = choose_encoder_inputs(engine, draft, needy, 0, 9)
    draft.take_back(victim)
    draft.spend(needy, 9)
    take_encoder_inputs(engine, draft, needy, choice)
    assert draft.encoder_embeds == num_left


class TestWithdrawnRuns:
    """An encoder run leaves the step with the request that was to make it.

    Schedules recorded from vLLM 0.32.0 under priorities break ENC-HIT here: the entry stays in the books, nothing ever fills it,
    and the next request that needs the item is scheduled as if it were there.
    """

    def surviving_runs(self, image, dialect) -> list[str]:
        """Requests whose run for the image reaches the workers; `slow` is preempted by `urgent` in the step of its run."""
        config = SchedulerConfig(
            block_size=4,
            num_gpu_blocks=6,
            max_num_batched_tokens=8,
            max_num_seqs=2,
            max_model_len=64,
            enable_prefix_caching=False,
            policy="priority",
            scheduler_reserve_full_isl=False,
            long_prefill_token_threshold=4,
        )
        engine = Scheduler(config, dialect)
        engine.add_request(Request("slow", TokenPrompt([1] * 16), 2, (image("x", 12, 4),), priority=5))
        runs: list[str] = []
        preempted_with_run = False
        for step in range(100):
            plan = engine.schedule()
            engine.update_from_output(plan)
            runs += plan.scheduled_encoder_inputs
            if step == 0:
                engine.add_request(Request("urgent", TokenPrompt([2] * 20), 1))
            preempted_with_run |= plan.step == 2 and list(plan.preempted) == ["slow"]
            if not engine.has_unfinished:
                break
        assert preempted_with_run
        assert not engine.has_unfinished
        return runs

    def test_the_ideal_makes_it_when_the_request_comes_back(self, image) -> None:
        assert self.surviving_runs(image, IDEAL) == ["slow"]

    def test_the_release_leaves_an_entry_that_nothing_fills(self, image) -> None:
        assert self.surviving_runs(image, named("vllm-0.32")) == []

    def test_a_request_that_relies_on_it_takes_it_over(self, image) -> None:
        engine = EngineState(SchedulerConfig(policy="priority"), IDEAL, None)
        draft = StepDraft(engine)
        features = {"victim": (image("x", 0, 4),), "heir": (image("y", 0, 2), image("x", 3, 4), image("x", 8, 4))}
        for name, items in features.items():
            request = Request(name, TokenPrompt([1] * 12), 2, items, priority=int(name == "victim"))
            state = RequestState(request, RequestKeys(engine.table, request, 16, IDEAL), tuple(4 for _ in items), 64)
            engine.requests[name] = state
            engine.running.append(state)
            choice = choose_encoder_inputs(engine, draft, state, 0, 12)
            draft.spend(state, 12)
            take_encoder_inputs(engine, draft, state, choice)
        assert draft.encoder_inputs == {"victim": [0], "heir": [0]}
        left = draft.encoder_embeds
        preempt_one(engine, draft, 1)
        assert draft.encoder_inputs == {"heir": [0, 1]}
        assert draft.encoder_embeds == left
        assert set(engine.encoder_cache.users("x")) == {"heir"}


class TestUnwrittenBlocks:
    """A request is preempted in the step that was to fill two of its blocks, and needs them again two steps later.

    The real vLLM 0.32.0 resumes it at 28 tokens, of which it never computed the last four: silently wrong KV content.
    """

    def resumed_at(self, dialect, runner: str) -> int:
        config = SchedulerConfig(
            block_size=4,
            num_gpu_blocks=11,
            max_num_batched_tokens=16,
            max_num_seqs=2,
            max_model_len=64,
            policy="priority",
            model_runner=runner,
            long_prefill_token_threshold=8,
        )
        engine = Scheduler(config, dialect)
        engine.add_request(Request("slow", TokenPrompt(range(10, 42)), 2, priority=5))
        engine.update_from_output(engine.schedule())
        engine.add_request(Request("urgent", TokenPrompt(range(50, 59)), 1, arrival_time=1.0))
        plans = []
        for _ in range(3):
            plans.append(engine.schedule())
            engine.update_from_output(plans[-1])
        assert list(plans[1].preempted) == ["slow"]
        assert dict(plans[1].num_scheduled_tokens) == {"urgent": 1}
        (row,) = (*plans[2].new, *plans[2].cached)
        return row.num_computed_tokens

    @pytest.mark.parametrize("runner", ["v1", "v2"])
    def test_the_ideal_resumes_where_it_had_computed_to(self, runner: str) -> None:
        assert self.resumed_at(IDEAL, runner) == 24

    @pytest.mark.parametrize("runner", ["v1", "v2"])
    def test_the_release_finds_a_block_that_was_never_written(self, runner: str) -> None:
        assert self.resumed_at(named("vllm-0.32"), runner) == 28


class TestEqualUrgency:
    """Two requests of equal priority and arrival time, each too large to let the other finish (LIVE-PROG)."""

    def preemptions(self, dialect) -> int:
        config = SchedulerConfig(
            block_size=1,
            num_gpu_blocks=21,
            max_num_batched_tokens=10,
            max_num_seqs=2,
            max_model_len=64,
            enable_prefix_caching=False,
            policy="priority",
            scheduler_reserve_full_isl=False,
            long_prefill_token_threshold=5,
        )
        engine, preempted = Scheduler(config, dialect), 0
        for name in "ab":
            engine.add_request(Request(name, TokenPrompt([1] * 18), 2, arrival_time=2.0))
        for _ in range(200):
            plan = engine.schedule()
            engine.update_from_output(plan)
            preempted += len(plan.preempted)
            if not engine.has_unfinished:
                break
        return preempted

    def test_one_of_them_gives_way(self) -> None:
        assert self.preemptions(IDEAL) == 1

    def test_in_the_release_they_preempt_each_other_for_ever(self) -> None:
        assert self.preemptions(named("vllm-0.32")) == 99


@pytest.mark.parametrize(("runner", "where"), [("v1", "cached"), ("v2", "new")])
def test_a_resume_is_a_difference_on_v1_and_news_on_v2(text, run, runner: str, where: str) -> None:
    engine = scheduler(model_runner=runner, max_num_seqs=2)
    engine.add_request(text("a", 8, 9))
    engine.add_request(text("b", 4, 13))
    plans = run(engine)
    (preempted_at,) = [plan.step for plan in plans if plan.preempted]
    rows = [row for plan in plans[preempted_at:] for row in getattr(plan, where) if row.request_id == "b"]
    if runner == "v2":
        assert rows[0].num_prompt_tokens > 4, "outputs so far go along"
        assert len(rows[0].block_ids) >= 2
    else:
        assert [row.resumed for row in rows].count(True) == 1
        resumed = next(row for row in rows if row.resumed)
        assert len(resumed.new_block_ids) >= 2, "the whole table"


def test_all_get_their_tokens_whatever_is_preempted(text) -> None:
    engine, tokens = scheduler(), dict.fromkeys("abcd", 0)
    for name in tokens:
        engine.add_request(text(name, 6, 12))
    preempted = 0
    while engine.has_unfinished:
        plan = engine.schedule()
        preempted += len(plan.preempted)
        for name, count in engine.update_from_output(plan).new_tokens.items():
            tokens[name] += count
    assert preempted > 2
    assert set(tokens.values()) == {12}
    assert engine.free_blocks == 5


class TestAbort:
    def test_a_running_request_gives_everything_back_and_is_reported_next(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 8, 8))
        engine.update_from_output(engine.schedule())
        engine.finish_requests(["a", "unknown"])
        assert (engine.free_blocks, engine.has_unfinished) == (5, False)
        assert list(engine.schedule().finished) == ["a"]
        assert list(engine.schedule().finished) == []

    def test_between_plan_and_output_its_token_is_dropped(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 8, 8))
        engine.add_request(text("b", 4, 1))
        plan = engine.schedule()
        engine.finish_requests(["a"])
        outcome = engine.update_from_output(plan)
        assert (dict(outcome.new_tokens), list(outcome.finished)) == ({"b": 1}, ["b"])
        assert engine.free_blocks == 5

    def test_a_waiting_one_leaves_the_queue(self, text) -> None:
        for policy in ("fcfs", "priority"):
            engine = scheduler(policy=policy, max_num_seqs=1)
            for name in "abc":
                engine.add_request(text(name, 4, 2))
            engine.schedule()
            engine.finish_requests(["b"])
            assert engine.waiting == ["c"]


@pytest.mark.parametrize(("rules", "encoded"), [("", ["b", "c"]), ("+scheduler.encoder_left", ["b"])])
def test_encoder_budget_of_a_request_that_gives_way_goes_to_those_behind(
    text, image, rules: str, encoded: list[str]
) -> None:
    """Where an encoder run that leaves the step is not withdrawn, what the next one left was counted without what came back."""
    config = SchedulerConfig(
        block_size=4,
        num_gpu_blocks=10,
        max_num_batched_tokens=32,
        max_num_seqs=3,
        max_model_len=64,
        policy="priority",
        encoder_cache_size=12,
        max_num_encoder_input_tokens=8,
        long_prefill_token_threshold=8,
    )
    engine = Scheduler(config, named(f"vllm-0.32:scheduler.withdrawn{rules}"))

    def add(name: str, num_before: int, priority: int) -> None:
        tokens = TokenPrompt([ord(name)] * num_before + [9] * 4)
        engine.add_request(Request(name, tokens, 1, (image(name, num_before, 4),), priority=priority))

    add("a", 16, 1)
    engine.add_request(text("other", 1))
    engine.update_from_output(engine.schedule())
    add("b", 8, 0)
    add("c", 8, 0)
    engine.update_from_output(engine.schedule())
    assert engine.running == ["a", "b", "c"]
    plan = engine.schedule()  # each needs a block and an encoder run, and one block is left
    assert list(plan.preempted) == ["a"]
    assert sorted(plan.scheduled_encoder_inputs) == encoded
