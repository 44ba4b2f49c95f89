"""Async scheduling: a step is planned before the output of the one before is known."""

from __future__ import annotations

from collections import deque

import pytest

from epdsim.core.plan import StepPlan
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler


def scheduler(**settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(async_scheduling=True, **defaults | settings))


class Pipeline:
    """A caller that plans one step ahead."""

    def __init__(self, engine: Scheduler) -> None:
        self.engine, self.under_way = engine, deque[StepPlan]()
        self.tokens: dict[str, int] = {}

    def step(self) -> StepPlan:
        plan = self.engine.schedule()
        self.under_way.append(plan)
        if len(self.under_way) > 1:
            for name, count in self.engine.update_from_output(self.under_way.popleft()).new_tokens.items():
                self.tokens[name] = self.tokens.get(name, 0) + count
        return plan

    def run(self) -> list[StepPlan]:
        plans: list[StepPlan] = []
        while self.engine.has_unfinished:
            plans.append(self.step())
        return plans


def test_a_decode_is_planned_on_the_token_that_is_under_way(text) -> None:
    engine = scheduler()
    engine.add_request(text("a", 6, 4))
    plans = Pipeline(engine).run()
    assert [dict(plan.num_scheduled_tokens) for plan in plans] == [{"a": 6}, {"a": 1}, {"a": 1}, {"a": 1}, {}]


def test_no_step_is_planned_past_the_last_token(text) -> None:
    engine = scheduler()
    engine.add_request(text("a", 6, 1))
    assert [plan.total_num_scheduled_tokens for plan in Pipeline(engine).run()] == [6, 0]


def test_blocks_become_known_when_their_tokens_are(text) -> None:
    """In the step that fills a block with a token under way, nobody can know its content yet."""
    engine = scheduler(num_gpu_blocks=8)
    engine.add_request(Request("a", TokenPrompt([1, 2, 3]), 3))
    pipeline = Pipeline(engine)
    pipeline.step()
    pipeline.step()
    pool = engine._engine.pool
    assert list(pool.keys()) == []
    pipeline.step()
    assert len(list(pool.keys())) == 1


def test_a_late_token_of_a_preempted_request_counts_and_delays_its_resume(text) -> None:
    engine = scheduler(num_gpu_blocks=6, max_num_seqs=2)
    for name in "ab":
        engine.add_request(text(name, 8, 8))
    pipeline = Pipeline(engine)
    pipeline.step()
    plan = pipeline.step()
    assert list(plan.preempted) == ["b"]
    assert pipeline.tokens == {"a": 1, "b": 1}, "its first token came back after the preemption"
    pipeline.run()
    assert pipeline.tokens == {"a": 8, "b": 8}
    assert engine.free_blocks == 5


def test_a_late_token_may_finish_a_preempted_request(text) -> None:
    engine = scheduler(num_gpu_blocks=6, max_num_seqs=2)
    engine.add_request(text("a", 8, 9))
    engine.add_request(text("b", 8, 1))
    pipeline = Pipeline(engine)
    pipeline.step()
    pipeline.step()
    assert pipeline.tokens["b"] == 1
    assert engine.running + engine.waiting == ["a"]


def test_an_aborted_request_loses_its_late_token(text) -> None:
    engine = scheduler()
    engine.add_request(text("a", 4, 5))
    pipeline = Pipeline(engine)
    pipeline.step()
    engine.finish_requests(["a"])
    pipeline.step()
    assert pipeline.tokens == {}
    assert engine.free_blocks == 32


@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_the_outcome_is_that_of_synchronous_scheduling(text, run, max_tokens: int) -> None:
    engine = scheduler()
    for name in "abc":
        engine.add_request(text(name, 7, max_tokens))
    pipeline = Pipeline(engine)
    pipeline.run()
    assert pipeline.tokens == dict.fromkeys("abc", max_tokens)


def test_encoder_entries_are_given_up_by_confirmed_progress(image) -> None:
    """The chunk that ends the item is under way twice over before its entry goes (vLLM PR 45347)."""
    engine = scheduler(encoder_cache_size=8)
    engine.add_request(Request("a", TokenPrompt([1] * 6), 4, (image("x", 1, 4),)))
    pipeline = Pipeline(engine)
    pipeline.step()
    cache = engine._engine.encoder_cache
    assert set(cache.users("x")) == {"a"}
    pipeline.step()
    assert not cache.users("x")
