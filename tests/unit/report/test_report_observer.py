"""Latencies and loads that a report draws, against what the events say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.request import WARM_UP
from epdsim.events import (
    EncodeRunFinished,
    FirstToken,
    Preempted,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.report.observer import MOST_BINS, RunObserver


def observed(*events):
    observer = RunObserver()
    for event in events:
        observer(event)
    return observer.picture()


def step(time_ms, duration_ms, running=1, waiting=0, instance="p"):
    return StepFinished(time_ms, instance, 1, 1, running, running, waiting, duration_ms)


def test_latencies_are_those_of_completed_requests_that_are_no_warm_up():
    seen = observed(
        RequestArrived(0, "o", "w", 1, WARM_UP), RequestArrived(10, "o", "r", 3), RequestArrived(11, "o", "lost", 3),
        FirstToken(20, "p", "w"), RequestFinished(20, "p", "w", 1),
        FirstToken(60, "p", "r"), Preempted(65, "p", "r"), FirstToken(70, "p", "r"), RequestFinished(100, "p", "r", 3),
        RequestFailed(120, "o", "lost", "why"),
    )  # fmt: skip
    assert (seen.ttft_ms, seen.tpot_ms, seen.e2e_ms) == ((50, 50), (20, 20), (90, 90)), "least and most of one each"


def test_an_instance_is_busy_where_its_steps_lie():
    seen = observed(step(2.5, 2.0, running=3, waiting=5), EncodeRunFinished(3, "e", 4, 2, 1.0))
    assert seen.bin_ms == 1
    assert seen.loads["p"].busy == (0.5, 1.0, 0.5, 0.0)
    assert seen.loads["p"].running == (0, 3, 3, 0)
    assert seen.loads["p"].waiting == (0, 0, 5, 0)
    assert seen.loads["e"].busy == (0.0, 0.0, 1.0, 0.0)
    assert seen.loads["e"].waiting == (0, 0, 0, 2)


def test_requests_run_all_through_a_step_that_ends_with_their_last_tokens():
    seen = observed(StepFinished(3.5, "p", 1, 100, 2, 0, 0, 3.0))
    assert (seen.loads["p"].running, seen.loads["p"].busy) == ((0, 2, 2, 0), (0.5, 1, 1, 0.5))


@given(st.lists(st.tuples(st.floats(0.01, 5_000), st.floats(0, 100), st.integers(0, 9)), min_size=1, max_size=60))
def test_bins_keep_busy_time_and_the_highest_counts_however_long_the_run(steps):
    now_ms, busy_ms, events = 0.0, 0.0, []
    for duration_ms, idle_ms, running in steps:
        now_ms += idle_ms + duration_ms
        busy_ms += duration_ms
        events.append(step(now_ms, duration_ms, running))
    seen = observed(*events)
    load = seen.loads["p"]
    assert len(load.busy) <= MOST_BINS
    assert sum(load.busy) * seen.bin_ms == pytest.approx(busy_ms)
    assert max(load.busy) <= 1 + 1e-9
    assert max(load.running) == max(running for _, _, running in steps)
