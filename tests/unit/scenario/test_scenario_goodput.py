"""Goodput: what the search finds is what trying every rate finds, and a scenario has it where its points leave the rate open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.scenario.claims import compare
from epdsim.scenario.goodput import find_goodput
from epdsim.scenario.jobs import Listeners
from epdsim.scenario.points import metric
from epdsim.scenario.search_schema import GoodputSpec
from epdsim.scenario.slo import missed
from epdsim.scenario.study import run_scenario

SLO = {"ttft_ms.p99": 40.0}
WORKLOAD = {
    "kind": "constant",
    "rate_req_s": 3.0,
    "num_requests": 80,
    "text_tokens": {"kind": "constant", "value": 1000},
    "output_tokens": {"kind": "constant", "value": 4},
}
SEARCH = {"key": "workload.rate_req_s", "low": 10, "high": 200, "step": 10}
AXES = {"rate": "workload.rate_req_s", "output": "workload.output_tokens.value"}


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 45))
def test_the_search_finds_the_last_rate_that_meets_the_service_level(low, span, most) -> None:
    asked = []

    def misses(rate):
        asked.append(rate)
        return rate > most

    found = find_goodput(GoodputSpec(key="k", low=low, high=low + span), misses)
    meeting = [rate for rate in range(low, low + span + 1) if rate <= most]
    assert (found.req_s, found.rate) == ((meeting[-1], meeting[-1]) if meeting else (0, low))
    assert len(asked) <= (span + 1).bit_length(), "bisection, not a walk"


def test_steps_of_a_tenth_reach_the_end() -> None:
    assert GoodputSpec(key="k", low=0.1, high=0.8, step=0.1).rates == pytest.approx([n / 10 for n in range(1, 9)])


@pytest.fixture(scope="module")
def searched(scenario):
    """Points whose axes choose the rate, and one that leaves it to the search."""
    rates = [float(rate) for rate in range(10, 201, 10)]
    loaded = scenario(
        workload=WORKLOAD,
        slo=SLO,
        goodput=SEARCH,
        axes=AXES,
        runs=[{"rate": rates, "output": [4]}, {"output": [4]}],
        published=[{"at": {"output": 4}, "metric": "goodput_req_s", "value": 1}],
        columns=["goodput_req_s"],
    )
    return run_scenario(loaded)


def test_a_point_without_a_rate_is_run_at_its_goodput(searched) -> None:
    *swept, last = searched.runs
    meeting = [run for run in swept if not missed(run.metrics, SLO)]
    assert 0 < len(meeting) < len(swept), "the grid has both sides"
    best = meeting[-1]
    assert last.metrics.goodput_req_s == best.point["rate"]
    assert last.metrics.ttft_ms == best.metrics.ttft_ms
    assert all(run.metrics.goodput_req_s is None for run in swept)


def test_a_published_goodput_stands_beside_the_simulated_one(searched) -> None:
    (row,) = compare(searched)
    assert row.simulated == searched.runs[-1].metrics.goodput_req_s
    with pytest.raises(InputError, match="none was searched for here"):
        metric(searched.runs[0].metrics, "goodput_req_s")


def test_takers_of_events_see_one_run(scenario) -> None:
    arrivals = []
    loaded = scenario(workload=WORKLOAD, slo=SLO, goodput=SEARCH)
    run_scenario(loaded, listeners=Listeners(lambda _: [lambda event: arrivals.append(type(event).__name__)]))
    assert arrivals.count("RequestArrived") == 80


def test_a_service_level_that_no_rate_meets_has_no_goodput(scenario) -> None:
    (run,) = run_scenario(scenario(workload=WORKLOAD, slo={"ttft_ms.p99": 1.0}, goodput=SEARCH)).runs
    assert run.metrics.goodput_req_s == 0.0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"goodput": SEARCH}, "goodput needs a service level"),
        ({"goodput": SEARCH | {"low": 300}, "slo": SLO}, "low is 300, more than high, which is 200"),
        ({"goodput": SEARCH | {"step": 1e-6}, "slo": SLO}, "raise step"),
        ({"goodput": SEARCH | {"key": "workload.rate"}, "slo": SLO}, "workload.rate"),
        ({"columns": ["goodput_req_s"]}, "columns.0.*is the outcome of a search, and here is none"),
        ({"slo": {"goodput_req_s": 3.0}}, "slo.*is the outcome of a search"),
        (
            {
                "goodput": SEARCH,
                "slo": SLO,
                "axes": AXES,
                "runs": [{"rate": [3]}],
                "published": [{"at": {"rate": 3}, "metric": "goodput_req_s", "value": 1}],
            },
            "published.0.metric.*give a goodput section, and runs without an axis for its key",
        ),
    ],
)
def test_what_cannot_be_searched_is_told_when_the_file_is_read(scenario, more, told) -> None:
    with pytest.raises(InputError, match=told):
        scenario(**({"workload": WORKLOAD} | more))
