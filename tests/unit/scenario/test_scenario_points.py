"""Figures by name."""

from __future__ import annotations

import dataclasses

import pytest

from epdsim.core.errors import InputError
from epdsim.report.metrics import Distribution
from epdsim.report.sink import MetricsSink
from epdsim.scenario.points import check_metric, matches, metric
from epdsim.scenario.runner import run_point

NOTHING = MetricsSink().result()
SOMETHING = dataclasses.replace(
    NOTHING,
    completed=3,
    ttft_ms=Distribution(3, 5.0, 4.0, 8.0, 9.0, 10.0),
    leg_bytes={"prefill": 70, "encode": 30},
    busy_ms={"engine-0": 2.5},
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("completed", 3),
        ("ttft_ms", 5),
        ("ttft_ms.mean", 5),
        ("ttft_ms.p50", 4),
        ("ttft_ms.p90", 8),
        ("ttft_ms.max", 10),
        ("ttft_ms.count", 3),
        ("leg_bytes", 100),
        ("leg_bytes.encode", 30),
        ("leg_bytes.decode", 0),
        ("busy_ms.engine-0", 2.5),
        ("busy_ms.engine-9", 0),
        ("prefix_hit_rate", 0),
    ],
)
def test_a_figure_by_its_name(name, value):
    assert metric(SOMETHING, name) == value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("speed", "no such figure; there are aborted, "),
        ("__class__", "no such figure"),
        ("ttft_ms.p42", "ttft_ms has no 'p42'; it has count, mean, p50, p90, p99, max"),
        ("ttft_ms.", "nothing stands behind the dot"),
        ("failures.", "nothing stands behind the dot"),
        ("busy_ms.cook-0", "'cook-0' is no instance"),
        ("completed.p50", "completed has no 'p50'; it has nothing"),
        ("leg_bytes.prefil", "leg_bytes has no 'prefil'; it has encode, prefill, decode, aggregated"),
        ("prefill_bytes_by_payload.none", "it has full, metadata, deferred"),
    ],
)
def test_a_wrong_name_is_refused_with_the_names_there_are(name, said):
    with pytest.raises(InputError) as refused:
        check_metric(name)
    assert said in str(refused.value)
    with pytest.raises(InputError):
        metric(SOMETHING, name)


def test_a_latency_of_no_request_is_no_number():
    with pytest.raises(InputError, match="no request completed"):
        metric(NOTHING, "ttft_ms.p99")


def test_entries_that_runs_have_are_entries_that_can_be_named(scenario):
    for topology in ("aggregated", "p+d", "e+pd", "e+p+d"):
        metrics = run_point(scenario(fleet={"topology": topology}), {}, 0).metrics
        for name in (*metrics.leg_bytes, *metrics.busy_ms):
            check_metric(f"{'leg_bytes' if name in metrics.leg_bytes else 'busy_ms'}.{name}")
        for name in metrics.prefill_bytes_by_payload:
            check_metric(f"prefill_bytes_by_payload.{name}")
        assert metrics.leg_bytes


def test_a_point_matches_by_the_axes_that_are_named():
    point = {"arm": "stock", "images": 8}
    assert matches(point, {})
    assert matches(point, {"images": [2, 8]})
    assert matches(point, {"images": [8], "content": [None]}), "an axis that the point lacks is null"
    assert not matches(point, {"images": [2]})
    assert not matches(point, {"content": ["repeated"]})
