"""What is said beside a plan's answer."""

from __future__ import annotations

import pytest

from epdsim.scenario.jobs import JobResult
from epdsim.scenario.plan_curves import Curve, LoadPoint, Surroundings
from epdsim.scenario.plan_tables import Answer, as_data, sentences
from epdsim.scenario.planning import Plan, Trial
from epdsim.scenario.slo import Missed
from epdsim.scenario.stretch import Traffic

POOLS = ("fleet.encode.count", "fleet.prefill.count")
LEVEL = {"ttft_ms.p99": 100.0}
MISSED = (Missed("ttft_ms.p99", 100.0, 120.0),)


def trial(*fleet, meets=True, is_whole=True):
    return Trial(fleet, float(sum(fleet)), JobResult(None, () if meets else MISSED), is_whole)


def curve(*fleet, **meets_at):
    points = [
        LoadPoint(load, 10.0 * load, 0.0, None, meets_at.get(name, True))
        for name, load in (("half", 0.5), ("one", 1.0))
    ]
    return Curve(fleet, float(sum(fleet)), "one more", tuple(points))


def answer(trials, curves, stretch_s=None):
    around = Surroundings(tuple(curves), {}) if curves else None
    plan = Plan(POOLS, trials[0], (), tuple(trials))
    return Answer({}, plan, None, Traffic(400, stretch_s, 100, 3600.0), around=around)


@pytest.mark.parametrize(
    ("trials", "curves", "stretch_s", "pair"),
    [
        ([trial(1, 2), trial(1, 1, meets=False)], [], None, None),
        ([trial(1, 2), trial(2, 2, meets=False)], [], None, ["1 + 2", "2 + 2"]),
        ([trial(1, 2)], [curve(1, 2), curve(2, 2)], None, None),
        ([trial(1, 2)], [curve(1, 2), curve(2, 2, one=False)], None, ["1 + 2", "2 + 2"]),
        ([trial(1, 2)], [curve(1, 2), curve(2, 2, half=False)], None, None),
        ([trial(1, 2), trial(2, 1)], [curve(1, 2), curve(2, 3, one=False)], None, ["1 + 2", "2 + 3"]),
        ([trial(1, 2)], [curve(1, 2, one=False), curve(2, 2, one=False)], (0.0, 300.0), None),
        ([trial(1, 2)], [curve(1, 2), curve(2, 2, one=False)], (0.0, 300.0), ["1 + 2", "2 + 2"]),
        ([trial(1, 2), trial(2, 2, meets=False, is_whole=False)], [], (0.0, 300.0), None),
    ],
    ids=[
        "no larger one misses",
        "a trial",
        "all curves meet",
        "a curve",
        "only at half the load",
        "a curve against a trial",
        "both miss the stretch alone",
        "curves of the stretch",
        "a stretch is no whole",
    ],
)
def test_two_fleets_that_contradict_the_rule_are_told_wherever_they_were_run(trials, curves, stretch_s, pair) -> None:
    one = answer(trials, curves, stretch_s)
    told = [line for line in sentences(one, LEVEL) if line.startswith("more instances are not always better here")]
    assert as_data(one)["contradiction"] == pair
    assert len(told) == (pair is not None)
    if pair:
        assert f"{pair[0]} meets the level and {pair[1]} misses it" in told[0]
