"""The busiest stretch of some traffic, and the requests of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.prompt import TokenRun
from epdsim.core.request import WARM_UP
from epdsim.scenario.stretch import survey
from epdsim.workload import MediaRef, Workload, WorkloadRequest


def traffic(arrivals_s, parts=None, **more):
    requests = [
        WorkloadRequest(f"r{index}", arrival_s * 1e3, parts(index) if parts else (TokenRun(f"r{index}", 0, 10),), 5)
        for index, arrival_s in enumerate(arrivals_s)
    ]
    return Workload("test", "test", lambda: iter(requests), **more)


def test_where_most_arrive():
    arrivals = [*range(0, 100, 4), *[50 + tenth / 10 for tenth in range(100)]]
    found = survey(traffic(sorted(arrivals)), 10.0)
    assert found.stretch_s == (50.0, 60.0)
    assert found.num_requests == len(arrivals)
    assert found.in_stretch == sum(50 <= one < 60 for one in arrivals)


def test_pictures_count_beside_requests():
    def parts(index):
        return (MediaRef(f"p{index}", height=2000 if 60 <= index < 70 else 10, width=1000), TokenRun("t", 0, 10))

    assert survey(traffic(range(100), parts), 10.0).stretch_s == (60.0, 70.0)


def test_short_traffic_closed_loops_and_who_asks_for_none_have_no_stretch():
    assert survey(traffic(range(39)), 10.0).stretch_s is None
    assert survey(traffic(range(100), concurrency=4), 10.0).stretch_s is None
    assert survey(traffic(range(100)), None).stretch_s is None


def test_warm_ups_are_not_counted():
    one = WorkloadRequest("w", 0.0, (TokenRun("w", 0, 1),), 1, slo_class=WARM_UP)
    assert survey(Workload("test", "test", lambda: iter([one])), 10.0).num_requests == 0


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40).map(sorted), st.integers(0, 4000), st.integers(1, 900))
def test_a_stretch_is_a_window_that_starts_at_its_own_start(arrivals_ms, start_ms, length_ms):
    workload = traffic([one / 1e3 for one in arrivals_ms], assumptions="told")
    part = workload.between(start_ms / 1e3, (start_ms + length_ms) / 1e3)
    expected = [one - start_ms for one in arrivals_ms if start_ms <= one < start_ms + length_ms]
    assert [request.arrival_ms for request in part] == pytest.approx(expected)
    assert [request.arrival_ms for request in part] == pytest.approx(expected), "it can be asked again"
    assert part.assumptions.startswith("told; arrivals from ")
