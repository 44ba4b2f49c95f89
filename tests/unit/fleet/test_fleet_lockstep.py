"""Engines that step together: rounds as long as their longest step, and nobody left behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.events import FirstToken, RequestFinished, StepFinished

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 900), st.integers(1, 9), st.booleans()), min_size=1, max_size=10
)


@pytest.fixture(scope="module")
def ranks(small_fleet):
    """A fleet of so many engines that step together, or do not."""

    def make(count, *, lockstep):
        fleet = small_fleet()
        return replace(fleet, prefill=replace(fleet.prefill, count=count, lockstep=lockstep))

    return make


def requests_of(chat, arrivals):
    at_ms, made = 0.0, []
    for number, (gap, text, output, has_image) in enumerate(arrivals):
        at_ms += gap
        pictures = [f"picture {number}"] if has_image else []
        made.append(chat(str(number), at_ms, text=text, output=output, images=pictures))
    return made


@given(ARRIVALS, st.integers(1, 4))
def test_steps_of_all_engines_are_equal_or_apart(run_fleet, ranks, chat, arrivals, count) -> None:
    run = run_fleet(ranks(count, lockstep=True), requests_of(chat, arrivals))
    assert run.metrics.completed == len(arrivals)
    rounds = sorted({(step.time_ms - step.duration_ms, step.time_ms) for step in run.of(StepFinished)})
    assert all(ended <= started for (_, ended), (started, _) in pairwise(rounds))


@given(ARRIVALS)
def test_one_engine_alone_steps_as_if_it_were_free(run_fleet, ranks, chat, arrivals) -> None:
    requests = requests_of(chat, arrivals)
    ends = [
        [(event.request_id, event.time_ms) for event in run_fleet(ranks(1, lockstep=lockstep), requests).of(kind)]
        for lockstep in (False, True)
        for kind in (FirstToken, RequestFinished)
    ]
    assert ends[:2] == ends[2:]


def test_a_long_prompt_on_one_rank_holds_up_the_others(run_fleet, ranks, chat) -> None:
    requests = [chat("short", 0.0, text=10, output=40), chat("long", 50.0, text=2000, output=1)]
    free, together = (run_fleet(ranks(2, lockstep=lockstep), requests) for lockstep in (False, True))
    ended = [next(e.time_ms for e in run.of(RequestFinished) if e.request_id == "short") for run in (free, together)]
    # 2,000 tokens and some in chunks of 512 or less: 0.02 ms each, in rounds that would last 5 ms each anyway.
    assert ended[1] - ended[0] == pytest.approx(2030 * 0.02, abs=2.0)
