"""Constants that are known are found again, from wherever the search starts."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.report.metrics import Distribution
from epdsim.report.sink import MetricsSink
from epdsim.scenario.fit import fit_constants
from epdsim.scenario.runner import run_point
from epdsim.scenario.study import run_scenario

AXES = {"images": "workload.requests.0.parts.1.count"}
FIXED, IMAGE = "costs.render.fixed_ms", "costs.render.image_ms"


def parameter(key, start, factor=1.0):
    return {"start": start, "sets": {key: factor}}


def study(points, parameters, used=None):
    """Sections of a file that fits TTFT at some numbers of images."""
    return {
        "axes": AXES,
        "runs": [{"images": sorted(points)}],
        "published": [{"at": {"images": n}, "metric": "ttft_ms", "value": value} for n, value in points.items()],
        "fit": {"metric": "ttft_ms", "where": {"images": used or list(points)}, "parameters": parameters},
    }


def test_constants_that_made_the_figures_are_found_by_running_the_simulator(scenario):
    truth = {FIXED: 12.0, IMAGE: 7.0}
    plain = scenario(axes=AXES, runs=[{"images": [1, 3, 9]}])
    figures = {n: run_point(plain, {"images": n}, 0, truth).metrics.ttft_ms.mean for n in (1, 3, 9)}
    parameters = {"fixed": parameter(FIXED, 1.0), "per image": parameter(IMAGE, 90.0)}
    result = run_scenario(scenario(**study(figures, parameters, used=[1, 9])))
    assert result.fit.chosen == pytest.approx({"fixed": 12.0, "per image": 7.0}, rel=1e-5)
    assert result.fit.constants == pytest.approx(truth, rel=1e-5)
    assert result.fit.rms_percent < 1e-3
    assert result.fit.points == ({"images": 1}, {"images": 9})
    assert [run.metrics.ttft_ms.mean for run in result.runs] == pytest.approx([figures[n] for n in (1, 3, 9)], rel=1e-5)


def test_a_constant_sets_every_key_that_it_is_tied_to(scenario):
    parameters = {"one": {"start": 2.0, "sets": {FIXED: 1, "costs.hop_ms": 0.25}}}
    result = run_scenario(scenario(**study({1: 60.0}, parameters)))
    assert result.fit.constants["costs.hop_ms"] == pytest.approx(result.fit.chosen["one"] / 4)
    assert result.fit.constants[FIXED] == result.fit.chosen["one"]
    assert result.runs[0].metrics.ttft_ms.mean == pytest.approx(60, rel=1e-5)


def test_points_that_no_constant_can_meet_leave_a_residue_that_is_told(scenario):
    parameters = {"fixed": parameter(FIXED, 10.0)}
    result = run_scenario(scenario(**study({1: 20.0, 2: 80.0}, parameters)))
    assert 10 < result.fit.rms_percent < 80


PLAIN = MetricsSink().result()


def reading(value):
    return dataclasses.replace(PLAIN, ttft_ms=Distribution(1, value, value, value, value, value))


@settings(max_examples=40)
@given(st.floats(0.5, 200), st.floats(0.05, 20), st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_line_is_found_from_starts_ten_times_off(scenario, fixed, slope, off_a, off_b):
    """Residuals are relative and steps are taken in logarithms, so the scale of the start does not matter."""
    truth = {n: fixed + slope * n for n in (1, 4, 30)}
    parameters = {"fixed": parameter(FIXED, fixed * off_a), "slope": parameter(IMAGE, slope * off_b)}
    loaded = scenario(**study(truth, parameters))
    fit = fit_constants(loaded, lambda asked: [reading(has[FIXED] + has[IMAGE] * at["images"]) for at, has in asked])
    assert fit.rms_percent < 0.1
    assert {n: fit.chosen["fixed"] + fit.chosen["slope"] * n for n in truth} == pytest.approx(truth, rel=3e-3)
