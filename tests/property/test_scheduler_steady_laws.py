"""FWD-EQ: many decode steps at once end in the state, and bring the tokens, of the same steps one by one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler


@st.composite
def requests(draw: st.DrawFn, number: int) -> Request:
    length = draw(st.integers(1, 30))
    if draw(st.booleans()):
        prompt = TokenPrompt([draw(st.integers(0, 1)) for _ in range(length)])
    else:
        prompt = RunPrompt([TokenRun(draw(st.sampled_from("ab")), 0, length)])
    features = ()
    if length >= 6 and draw(st.booleans()):
        features = (MediaFeature("image", draw(st.sampled_from("xy")), PlaceholderRange(1, 4)),)
    return Request(f"r{number}", prompt, draw(st.integers(1, 25)), features)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[SchedulerConfig, list[tuple[int, Request]]]:
    config = SchedulerConfig(
        block_size=draw(st.sampled_from([1, 2, 4])),
        num_gpu_blocks=draw(st.integers(60, 90)),
        max_num_batched_tokens=draw(st.integers(4, 12)),
        max_num_seqs=draw(st.integers(1, 4)),
        encoder_cache_size=draw(st.integers(4, 8)),
        enable_prefix_caching=draw(st.booleans()),
        model_runner=draw(st.sampled_from(["v1", "v2"])),
    )
    count = draw(st.integers(1, 5))
    arrivals = sorted(draw(st.integers(0, 20)) for _ in range(count))
    return config, [(at, draw(requests(number))) for number, at in enumerate(arrivals)]


def observe(scheduler: Scheduler) -> tuple[object, ...]:
    pool = scheduler._engine.pool
    tables = {name: list(state.blocks) for name, state in scheduler._engine.requests.items()}
    keys = [bool(pool.key_of(block)) for block in range(pool.num_blocks)]
    return scheduler.fingerprint(), pool.free_queue(), tables, keys, scheduler.running, scheduler.waiting


@pytest.mark.engine_law
@settings(max_examples=150)
@given(workloads(), st.data())
def test_steps_taken_at_once_equal_steps_taken_one_by_one(workload, data) -> None:
    config, arrivals = workload
    scheduler, step = Scheduler(config), 0
    pending = list(arrivals)
    while pending or scheduler.has_unfinished:
        while pending and pending[0][0] <= step:
            scheduler.add_request(pending.pop(0)[1])
        steady = scheduler.steady_steps()
        if steady:
            count = data.draw(st.integers(1, steady))
            slow = scheduler.clone()
            if data.draw(st.booleans()):
                late = f"late{step}"
                extra = Request(late, RunPrompt([TokenRun("a", 0, 3)]), 2)
                for one in (scheduler, slow):
                    one.add_request(extra)
                if not slow.steady_steps():
                    count = 1  # from the second step on it would be admitted
                    slow.finish_requests([late])
                    scheduler.finish_requests([late])
            tokens: Counter[str] = Counter()
            finished: list[str] = []
            for _ in range(count):
                plan = slow.schedule()
                assert not plan.new
                assert not plan.preempted
                assert set(plan.num_scheduled_tokens.values()) == {1}
                outcome = slow.update_from_output(plan)
                tokens.update(outcome.new_tokens)
                finished += outcome.finished
            at_once = scheduler.take_steps(count)
            assert dict(at_once.new_tokens) == dict(tokens)
            assert list(at_once.finished) == finished
            assert observe(scheduler) == observe(slow)
            step += count
        else:
            scheduler.update_from_output(scheduler.schedule())
            step += 1


def test_long_decodes_are_taken_in_few_strides() -> None:
    """The twin of equality: a stride that is always one step would be equal too, and useless."""
    scheduler = Scheduler(SchedulerConfig(num_gpu_blocks=512))
    for number in range(4):
        scheduler.add_request(Request(f"r{number}", RunPrompt([TokenRun(number, 0, 100)]), 500 + number))
    scheduler.update_from_output(scheduler.schedule())
    strides = 0
    while scheduler.has_unfinished:
        scheduler.take_steps(scheduler.steady_steps())
        strides += 1
    assert strides == 4
