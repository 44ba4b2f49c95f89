"""Streaming sessions: turns, inputs that come early, what is kept, what is told, and what releases do otherwise."""

from __future__ import annotations

from collections import deque

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.core.plan import StepPlan
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import PauseState, Scheduler
from epdsim.core.workers.worker import Worker

RELEASE = named("vllm-0.32")
BOTH = pytest.mark.parametrize(("dialect", "is_ideal"), [(IDEAL, True), (RELEASE, False)], ids=["ideal", "release"])


def scheduler(dialect: Dialect = IDEAL, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


def session(name: str, length: int, max_tokens: int = 2, *features: MediaFeature, **fields) -> Request:
    return Request(name, RunPrompt([TokenRun(name, 0, length)]), max_tokens, features, resumable=True, **fields)


def more(name: str, length: int, max_tokens: int = 2, *features: MediaFeature, **fields) -> StreamingUpdate:
    return StreamingUpdate(name, RunPrompt([TokenRun(f"{name} more", 0, length)]), max_tokens, features, **fields)


def step(engine: Scheduler, count: int = 1) -> StepPlan:
    """The last of some steps, each heard before the next is planned."""
    plan = StepPlan(0, {})
    for _ in range(count):
        plan = engine.schedule()
        engine.update_from_output(plan)
    return plan


class TestTurns:
    def test_a_session_keeps_its_blocks_and_all_output_but_the_last_token(self) -> None:
        engine = scheduler()
        engine.add_request(session("s", 6, 3))
        for _ in range(2):
            engine.update_from_output(engine.schedule())
        outcome = engine.update_from_output(engine.schedule())
        assert (list(outcome.finished), list(outcome.turned)) == ([], ["s"])
        assert (engine.running, engine.waiting, engine.has_unfinished) == ([], ["s"], False)
        assert engine.free_blocks == 30
        assert not engine.schedule().num_scheduled_tokens
        assert engine.add_update(more("s", 5))
        assert engine.has_unfinished
        plan = engine.schedule()
        (new,) = plan.new
        assert (new.num_computed_tokens, new.num_prompt_tokens, new.num_cached_tokens) == (8, 13, 0)
        assert dict(plan.num_scheduled_tokens) == {"s": 5}
        assert list(new.block_ids)[:2] == [1, 2]

    def test_input_that_comes_while_it_runs_is_taken_when_the_turn_is_over(self) -> None:
        engine = scheduler()
        engine.add_request(session("s", 4, 2))
        step(engine)
        engine.add_update(more("s", 3, 1))
        engine.add_update(more("s", 2, 1))
        engine.close_session("s")
        assert [dict(step(engine).num_scheduled_tokens) for _ in range(3)] == [{"s": 1}, {"s": 3}, {"s": 2}]
        assert not engine.waiting
        assert list(engine.schedule().finished) == ["s"]
        assert engine.free_blocks == 32

    def test_a_session_that_waits_for_input_takes_a_place_but_no_step(self, text) -> None:
        engine = scheduler(max_num_seqs=2)
        engine.add_request(session("s", 4, 1))
        step(engine)
        for name in "ab":
            engine.add_request(text(name, 4, 2))
        assert dict(step(engine).num_scheduled_tokens) == {"a": 4}
        assert (engine.running, engine.waiting) == (["a"], ["s", "b"])
        engine.close_session("s")
        assert dict(step(engine).num_scheduled_tokens) == {"a": 1, "b": 4}

    def test_sessions_that_hold_blocks_are_admitted_before_the_others(self, text) -> None:
        engine = scheduler(max_num_batched_tokens=8)
        engine.add_request(session("s", 4, 1))
        step(engine)
        engine.add_request(text("a", 8, 1))
        engine.add_update(more("s", 6))
        assert dict(step(engine).num_scheduled_tokens) == {"s": 6, "a": 2}

    def test_items_of_an_input_stand_behind_all_that_is_kept(self, image) -> None:
        engine = scheduler()
        engine.add_request(session("s", 6, 2, image("x", 1, 4)))
        step(engine, 2)
        engine.add_update(more("s", 6, 1, image("y", 2, 3)))
        plan = engine.schedule()
        assert dict(plan.scheduled_encoder_inputs) == {"s": [1]}
        (new,) = plan.new
        (sent,) = new.mm_features
        assert (sent.identifier, sent.position.offset, new.num_known_features) == ("y", 6 + 1 + 2, 1)

    def test_a_stop_token_ends_a_turn_and_a_request(self) -> None:
        engine = scheduler()
        engine.add_request(Request("s", TokenPrompt([1] * 4), 9, resumable=True, stop_token_ids=frozenset({7})))
        engine.add_request(Request("a", TokenPrompt([2] * 4), 9, stop_token_ids=frozenset({7})))
        engine.add_request(Request("b", TokenPrompt([3] * 4), 9))
        outcome = engine.update_from_output(engine.schedule(), {"s": [7], "a": [7], "b": [7]})
        assert (list(outcome.turned), list(outcome.finished), engine.running) == (["s"], ["a"], ["b"])

    def test_a_step_beyond_the_end_of_a_turn_is_dropped(self) -> None:
        engine = scheduler(async_scheduling=True)
        engine.add_request(Request("s", TokenPrompt([1] * 4), 9, resumable=True, stop_token_ids=frozenset({7})))
        first, second = engine.schedule(), engine.schedule()
        engine.add_update(StreamingUpdate("s", TokenPrompt([5, 6]), 1))
        assert list(engine.update_from_output(first, {"s": [7]}).turned) == ["s"]
        third = engine.schedule()
        assert (third.new[0].num_computed_tokens, dict(third.num_scheduled_tokens)) == (4, {"s": 2})
        assert not engine.update_from_output(second, {"s": [9]}).new_tokens
        assert dict(engine.update_from_output(third, {"s": [8]}).new_tokens) == {"s": 1}


class TestAtTheDoor:
    def test_an_input_for_nobody_is_told(self) -> None:
        engine = scheduler()
        assert not engine.add_update(more("s", 3))
        engine.close_session("s")

    @pytest.mark.parametrize(
        ("update", "rule"),
        [
            (more("s", 0), "at least one token"),
            (more("s", 3, 0), "one output token"),
            (more("s", 200), "max_model_len is 128"),
            (more("s", 100), "the pool has 9 blocks"),
            (StreamingUpdate("s", TokenPrompt([1]), 1), "all token ids or all runs"),
            (more("a", 3), "takes no further input"),
        ],
    )
    def test_what_no_schedule_could_finish_is_refused(self, text, update: StreamingUpdate, rule: str) -> None:
        engine = scheduler(num_gpu_blocks=10)
        engine.add_request(session("s", 4))
        engine.add_request(text("a", 4))
        before = engine.fingerprint()
        with pytest.raises(InputError, match=rule):
            engine.add_update(update)
        assert engine.fingerprint() == before

    def test_inputs_that_wait_count(self) -> None:
        engine = scheduler(num_gpu_blocks=6)
        engine.add_request(session("s", 4))
        engine.add_update(more("s", 8))
        with pytest.raises(InputError, match="of 22 tokens"):
            engine.add_update(more("s", 4))
        engine.add_update(more("s", 2))
        engine.close_session("s")
        with pytest.raises(InputError, match="takes no further input"):
            engine.add_update(more("s", 1))

    def test_an_item_larger_than_the_encoder_cache_is_refused(self, image) -> None:
        engine = scheduler(encoder_cache_size=4)
        engine.add_request(session("s", 4))
        with pytest.raises(InputError, match="encoder cache and encoder budget allow 4"):
            engine.add_update(more("s", 6, 1, image("x", 0, 5)))


class TestBroadcast:
    @BOTH
    def test_a_long_session_costs_what_is_new(self, image, dialect: Dialect, is_ideal: bool) -> None:
        """STRIP-COST: 200 inputs of one item each."""
        engine = scheduler(dialect, num_gpu_blocks=2000, max_model_len=4000)
        engine.add_request(session("s", 4, 1, image("first", 0, 4)))
        sent: list[int] = []
        for number in range(200):
            (new,) = step(engine).new
            sent.append(len(new.mm_features))
            engine.add_update(more("s", 4, 1, image(f"item{number}", 0, 4)))
        assert sent == [1] * 200 if is_ideal else sent == list(range(1, 201))

    @pytest.mark.parametrize("runner", ["v1", "v2"])
    @BOTH
    def test_a_session_that_lost_its_blocks_can_be_computed_again(
        self, image, runner: str, dialect: Dialect, is_ideal: bool
    ) -> None:
        """STRIP-AVAIL: a release sends what is covered again, without payload, over that which a v1 worker had."""
        engine = scheduler(dialect, model_runner=runner)
        worker = Worker(engine.config)
        found: list[str] = []

        def go() -> None:
            plan = engine.schedule()
            done = worker.execute(plan)
            found.extend(one.property_id for one in done.violations)
            engine.update_from_output(plan, done.sampled)

        request, update = session("s", 6, 1, image("x", 0, 4)), more("s", 3, 8)
        worker.add_request(request)
        engine.add_request(request)
        go()
        worker.keep_outputs("s", 0)
        worker.add_update(update)
        engine.add_update(update)
        go()
        engine.reset_prefix_cache(reset_running_requests=True)
        engine.reset_encoder_cache()
        worker.reset_encoder_cache()
        go()
        assert found == ([] if is_ideal or runner == "v2" else ["STRIP-AVAIL", "ENC-HIT"])


@BOTH
def test_sessions_give_way_when_nobody_else_can_go_on(dialect: Dialect, is_ideal: bool) -> None:
    engine = scheduler(dialect, num_gpu_blocks=5)
    for name in "ab":
        engine.add_request(session(name, 8, 1))
    step(engine)
    for name in "ab":
        engine.add_update(more(name, 4, 1))
        engine.close_session(name)
    plan = step(engine)
    if not is_ideal:
        step(engine, 50)
        assert (engine.running, engine.waiting, engine.free_blocks) == ([], ["a", "b"], 0)
        return
    assert (dict(plan.num_scheduled_tokens), list(plan.preempted)) == ({"a": 4}, ["b"])
    assert list(step(engine).finished) == ["a"]
    assert list(step(engine).finished) == ["b"]


@BOTH
def test_idle_sessions_give_way_first(text, dialect: Dialect, is_ideal: bool) -> None:
    engine = scheduler(dialect, num_gpu_blocks=7)
    for name in "abc":
        engine.add_request(session(name, 5, 1))
    step(engine)
    engine.add_update(more("b", 2, 1))
    engine.add_update(more("c", 6, 1))
    plan = step(engine)
    assert dict(plan.num_scheduled_tokens) == {"b": 2}
    # The last one needs a block, the first one is idle, the second one is idle again and later in the queue.
    plan = step(engine)
    assert list(plan.preempted) == (["b"] if is_ideal else [])
    assert dict(plan.num_scheduled_tokens) == ({"c": 6} if is_ideal else {})
    engine.add_request(text("r", 13, 1))
    step(engine, 2)
    assert ("r" in engine.waiting) != is_ideal


class Ahead:
    """A caller that plans one step ahead."""

    def __init__(self, engine: Scheduler) -> None:
        self.engine, self.under_way = engine, deque[StepPlan]()
        self.turned: list[str] = []

    def step(self, count: int = 1) -> StepPlan:
        for _ in range(count):
            self.under_way.append(self.engine.schedule())
            if len(self.under_way) > 1:
                self.turned += self.engine.update_from_output(self.under_way.popleft()).turned
        return self.under_way[-1]


@BOTH
def test_a_turn_that_ends_while_the_session_is_preempted_is_not_its_end(dialect: Dialect, is_ideal: bool) -> None:
    engine = scheduler(dialect, async_scheduling=True, num_gpu_blocks=5, scheduler_reserve_full_isl=False)
    engine.add_request(session("a", 7, 9))
    engine.add_request(session("b", 7, 2))
    caller = Ahead(engine)
    while "b" not in caller.turned:
        plan = caller.step()
    assert list(plan.preempted) == ["b"]
    engine.close_session("a")
    engine.add_update(more("b", 2, 1))
    engine.close_session("b")
    caller.step(20)
    assert caller.turned == ["b"]
    assert engine.waiting == []
    assert list(engine._engine.requests) == ([] if is_ideal else ["b"])


@BOTH
def test_a_turn_that_ends_behind_an_item_gives_its_entry_up(image, dialect: Dialect, is_ideal: bool) -> None:
    engine = scheduler(dialect, async_scheduling=True, encoder_cache_size=4)
    engine.add_request(session("s", 4, 1, image("x", 0, 4)))
    caller = Ahead(engine)
    caller.step(2)
    engine.add_update(more("s", 4, 1, image("y", 0, 4)))
    assert dict(caller.step().num_scheduled_tokens) == ({"s": 4} if is_ideal else {})
    caller.step(20)
    assert caller.turned == (["s", "s"] if is_ideal else ["s"])


@BOTH
def test_a_new_arrival_time_is_a_new_place(text, dialect: Dialect, is_ideal: bool) -> None:
    engine = scheduler(dialect, policy="priority", max_num_batched_tokens=12)
    for number, name in enumerate("abc"):
        engine.add_request(session(name, 4, 1, arrival_time=float(number)))
    step(engine)
    for name, time in (("a", 9.0), ("b", 8.0), ("c", 7.0)):
        engine.add_update(more(name, 6, 1, arrival_time=time))
    plan = step(engine)
    assert dict(plan.num_scheduled_tokens) == ({"c": 6, "b": 6} if is_ideal else {"a": 6, "c": 6})


class TestResets:
    @BOTH
    def test_a_reset_with_all_that_runs_reaches_sessions_too(self, text, dialect: Dialect, is_ideal: bool) -> None:
        engine = scheduler(dialect)
        engine.add_request(session("s", 4, 1))
        engine.add_request(text("a", 4, 5))
        step(engine)
        assert engine.reset_prefix_cache(reset_running_requests=True) == is_ideal
        assert (engine.running, engine.free_blocks) == ([], 32 if is_ideal else 31)
        plan = step(engine)
        assert list(plan.preempted) == (["a", "s"] if is_ideal else ["a"])
        # Four prompt tokens and the first of the output.
        assert dict(plan.num_scheduled_tokens) == {"a": 5 if is_ideal else 1}
        engine.add_update(more("s", 2, 1))
        assert dict(step(engine).num_scheduled_tokens) == {"a": 1, "s": 6 if is_ideal else 2}

    def test_what_ran_comes_back_in_order_and_output_under_way_is_dropped(self, text) -> None:
        engine = scheduler(async_scheduling=True)
        for name in "abc":
            engine.add_request(text(name, 4, 5))
        first = engine.schedule()
        assert engine.reset_prefix_cache(reset_running_requests=True)
        assert engine.waiting == ["a", "b", "c"]
        second = engine.schedule()
        assert [new.num_computed_tokens for new in (*second.new, *second.cached)] == [0, 0, 0]
        assert dict(second.num_scheduled_tokens) == {"a": 4, "b": 4, "c": 4}
        assert not engine.update_from_output(first).new_tokens
        assert dict(engine.update_from_output(second).new_tokens) == {"a": 1, "b": 1, "c": 1}

    def test_a_preempted_request_waits_for_its_late_output_unless_that_is_dropped(self, text) -> None:
        engine = scheduler(async_scheduling=True, num_gpu_blocks=5)
        for name in "ab":
            engine.add_request(text(name, 7, 9))
        caller = Ahead(engine)
        while not caller.step().preempted:
            pass
        assert engine.waiting == ["b"]
        state = engine._engine.requests["b"]
        assert not state.drops_stale
        engine.reset_prefix_cache(reset_running_requests=True)
        assert engine._engine.requests["a"].drops_stale
        assert not state.drops_stale

    def test_a_reset_of_the_connector_forgets_what_another_engine_computed(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 12, 1, num_remote_tokens=8))
        assert engine.reset_prefix_cache(reset_connector=True)
        assert dict(engine.schedule().num_scheduled_tokens) == {"a": 12}


class TestPauses:
    def test_while_all_is_paused_nothing_happens(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 4, 3))
        step(engine)
        engine.set_pause_state(PauseState.PAUSED_ALL)
        assert (engine.steady_steps(), engine.has_unfinished) == (0, False)
        assert not step(engine).num_scheduled_tokens
        engine.set_pause_state(PauseState.UNPAUSED)
        assert dict(step(engine).num_scheduled_tokens) == {"a": 1}

    def test_while_new_requests_are_paused_the_others_go_on(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 4, 3))
        engine.add_request(session("s", 4, 1))
        step(engine)
        engine.set_pause_state(PauseState.PAUSED_NEW)
        engine.add_request(text("b", 4, 3))
        engine.add_update(more("s", 2, 1))
        assert dict(step(engine).num_scheduled_tokens) == {"a": 1, "s": 2}
        step(engine)
        assert (engine.pause_state, engine.has_unfinished, engine.waiting) == (PauseState.PAUSED_NEW, False, ["s", "b"])
