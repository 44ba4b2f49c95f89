"""Differences between two sides, on figures that are given."""

from __future__ import annotations

import dataclasses

import pytest

from epdsim.report.metrics import Distribution
from epdsim.report.sink import MetricsSink
from epdsim.scenario.comparison import change_told, differences
from epdsim.scenario.points import more_is_better

PLAIN = MetricsSink().result()


def runs(*values_ms, **figures):
    return [dataclasses.replace(PLAIN, ttft_ms=Distribution(1, *[float(value)] * 5), **figures) for value in values_ms]


def ttft(base, head):
    (one,) = differences([{}], ["ttft_ms"], [runs(*base)], [runs(*head)])
    return one


def test_equal_sides_differ_by_nothing():
    one = ttft([100, 120, 90], [100, 120, 90])
    assert (one.change_percent, one.low_percent, one.high_percent) == (0, 0, 0)
    assert not one.is_regression(0)


def test_the_interval_is_students_over_the_differences_per_seed():
    """Differences 8, 10, 12: mean 10, deviation 2, t of two degrees of freedom 4.303; the base's mean is 100."""
    one = ttft([90, 100, 110], [98, 110, 122])
    assert one.change_percent == pytest.approx(10)
    half = 4.302653 * 2 / 3**0.5
    assert (one.low_percent, one.high_percent) == pytest.approx((10 - half, 10 + half))
    assert one.is_regression(5)
    assert not one.is_regression(5.1)


def test_seeds_that_change_nothing_are_one_sample():
    alike = ttft([100, 100, 100], [101, 101, 101])
    assert (alike.num_seeds, alike.has_interval) == (1, False)
    assert alike.change_percent == alike.low_percent == alike.high_percent == 1
    assert alike.is_regression(0.9)
    assert not alike.is_regression(1)
    for base, head in (([100, 100, 100], [101, 101, 102]), ([99, 100, 100], [101, 101, 101])):
        assert ttft(base, head).num_seeds == 3, "they change something on one side"


def test_a_figure_that_stands_still_while_others_move_has_its_interval():
    (still,) = differences([{}], ["steps"], [runs(1, 2, steps=10)], [runs(3, 4, steps=11)])
    assert (still.has_interval, still.low_percent, still.high_percent) == (True, 10, 10)


def test_what_may_be_chance_is_no_regression():
    assert not ttft([90, 100, 110], [80, 130, 105]).is_regression(0)


def test_more_throughput_is_no_regression_and_less_is():
    assert more_is_better("request_throughput_per_s")
    assert more_is_better("prefix_hit_rate")
    assert not more_is_better("ttft_ms.p99")
    base, head = runs(1, 1, output_tokens=100, duration_ms=1000.0), runs(1, 1, output_tokens=80, duration_ms=1000.0)
    (less,) = differences([{}], ["token_throughput_per_s"], [base], [head])
    (more,) = differences([{}], ["token_throughput_per_s"], [head], [base])
    assert less.is_regression(19.9)
    assert not less.is_regression(20)
    assert not more.is_regression(0)


def test_one_seed_has_no_interval_and_a_figure_out_of_nothing_is_endless():
    one = ttft([100], [130])
    assert (one.low_percent, one.high_percent) == (30, 30)
    (new,) = differences([{"arm": "a"}], ["preemptions"], [runs(1)], [runs(1, preemptions=3)])
    assert new.is_regression(1e9)
    assert str(new).startswith("preemptions at arm a: 0 to 3")


@pytest.mark.parametrize(
    ("percents", "told"),
    [
        ((5.0,), "+5.0 %"),
        ((-3.25, 899.0), "-3.2 to +899.0 %"),
        ((217_074.6,), "2,172 times"),
        ((50.0, 1_900.0), "1.5 to 20 times"),
        ((float("inf"),), "from nothing"),
    ],
)
def test_a_change_from_tenfold_on_is_told_as_a_factor(percents, told):
    assert change_told(*percents) == told
