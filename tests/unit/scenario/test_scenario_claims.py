"""Every kind of claim holding and failing, on figures that are given."""

from __future__ import annotations

import dataclasses

import pytest

from epdsim.report.metrics import Distribution
from epdsim.report.sink import MetricsSink
from epdsim.scenario import RunResult, ScenarioResult, compare, judge
from epdsim.scenario.fit import Fit

AXES = {"arm": {"a": {}, "b": {}}, "images": "workload.requests.0.parts.1.count"}
RUNS = [{"arm": ["a", "b"], "images": [1, 2]}]
PUBLISHED = [
    {"at": {"arm": "a", "images": 1}, "metric": "ttft_ms", "value": 100},
    {"at": {"arm": "a", "images": 2}, "metric": "ttft_ms", "value": 200},
    {"at": {"arm": "a", "images": 2}, "metric": "steps", "value": 7},
    {"at": {"arm": "b", "images": 1}, "metric": "steps", "value": 7, "given": True},
]
PLAIN = dataclasses.replace(MetricsSink().result(), steps=7)


@pytest.fixture
def result(scenario):
    """A result whose TTFT at (arm, images) is given; other figures are equal."""

    def make(claims, ttft_ms, fitted=(), **figures):
        loaded = scenario(axes=AXES, runs=RUNS, published=PUBLISHED, claims=claims)
        runs = []
        for point in loaded.points:
            value = ttft_ms[point["arm"], point["images"]]
            metrics = dataclasses.replace(PLAIN, ttft_ms=Distribution(1, *[float(value)] * 5), **figures)
            runs.append(RunResult(point, metrics, ()))
        fit = Fit({}, {}, "ttft_ms", tuple(fitted), 0.0) if fitted else None
        return ScenarioResult(loaded, 0, tuple(runs), fit)

    return make


FIGURES = {("a", 1): 104.0, ("a", 2): 190.0, ("b", 1): 50.0, ("b", 2): 50.0}


def test_published_figures_stand_beside_the_simulated_ones(result):
    first, second, third, fourth = compare(result([], FIGURES, fitted=[{"arm": "a", "images": 2}]))
    assert (first.published, first.simulated, first.role) == (100, 104, "predicted")
    assert first.deviation_percent == pytest.approx(4)
    assert second.deviation_percent == pytest.approx(-5)
    assert second.role == "fitted"
    assert third.role == "predicted", "at a fitted point, and another figure"
    assert fourth.role == "given"


@pytest.mark.parametrize(("within", "holds"), [(5.01, True), (4.99, False)])
def test_a_deviation_is_judged_by_its_worst_point(result, within, holds):
    claim = {"kind": "deviation", "metric": "ttft_ms", "where": {"arm": ["a"]}, "within_percent": within}
    (verdict,) = judge(result([claim], FIGURES))
    assert verdict.holds is holds
    assert "worst -5.0 % at arm a, images 2" in verdict.sentence


def test_a_deviation_is_judged_where_it_says_and_nowhere_else(result):
    claim = {"kind": "deviation", "metric": "ttft_ms", "where": {"images": [1]}, "within_percent": 4.01}
    assert judge(result([claim], FIGURES))[0].holds


@pytest.mark.parametrize(
    ("published", "within", "holds"), [(90, 4.01, True), (82, 4.01, True), (90, 3.9, False), (-86, 1, False)]
)
def test_a_gap_is_a_difference_with_a_sign(result, published, within, holds):
    claim = {
        "kind": "gap", "metric": "ttft_ms", "published": published, "within": within,
        "high": {"arm": "a", "images": 2}, "low": {"arm": "a", "images": 1},
    }  # fmt: skip
    (verdict,) = judge(result([claim], FIGURES))
    assert verdict.holds is holds
    assert "gap from arm a, images 1 to arm a, images 2: 86.0" in verdict.sentence


def test_equal_means_to_the_last_bit_and_names_what_differs(result):
    claim = {"kind": "equal", "metrics": ["steps", "ttft_ms"], "where": {"arm": ["b"]}, "across": "images"}
    (verdict,) = judge(result([claim], FIGURES, steps=7))
    assert verdict.holds
    (verdict,) = judge(result([claim], FIGURES | {("b", 2): 50.0 + 2**-47}, steps=7))
    assert not verdict.holds
    assert "different are ttft_ms at arm b" in verdict.sentence


def test_equal_compares_runs_that_agree_on_every_other_axis(result):
    claim = {"kind": "equal", "metrics": ["ttft_ms"], "where": {}, "across": "arm"}
    paired = {("a", 1): 1, ("b", 1): 1, ("a", 2): 2, ("b", 2): 2}
    assert judge(result([claim], paired))[0].holds
    (verdict,) = judge(result([claim], paired | {("b", 2): 3}))
    assert not verdict.holds
    assert verdict.sentence.endswith("different are ttft_ms at images 2")
