"""Predicted against real: bytes exactly, contents exactly, times beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.errors import InputError
from epdsim.core.strip import strip_covered
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.profile import MeasuredCell
from epdsim.payload import WireBytes, message_size, run_real_broadcast
from epdsim.payload.drift import host_drift, probe_plans, way

pytestmark = pytest.mark.xdist_group("shared-memory")

PROFILE = BroadcastProfile(chunk_bytes=64 << 10, in_band=False)


@pytest.fixture(scope="module")
def report(plans):
    """Four images on two ranks: nothing cached, half of it, all of it; each in full and stripped."""
    features = tuple(plans.feature(i, plans.handle(40_000, i), plans.handle(24, i)) for i in range(4))
    made = [
        plans.plan(strip_covered(features, computed) if strip else features, computed)
        for computed in (0, 40, 80)
        for strip in (False, True)
    ]
    return run_real_broadcast(made, 2, PROFILE, 3)


def test_every_rank_holds_the_senders_tensors(report):
    assert report.are_digests_equal
    assert all(len(one.rank_digests) == 2 for one in report.plans)
    assert len({digest for one in report.plans for digest in one.sender_digests}) == 8


def test_bytes_are_as_predicted_with_and_without_strip(report):
    assert report.are_bytes_equal
    sockets = [one.wires[0].socket_bytes_per_reader > 0 for one in report.plans]
    assert sockets == [True, True, True, True, True, False], "only the fully stripped plan fits a chunk"
    full, unhit, half_full, half, whole, nothing = [one.size.payload_bytes for one in report.plans]
    assert full == unhit == half_full == whole == 4 * 40_024
    assert (half, nothing) == (2 * 40_024, 0)


def test_times_are_told_beside_the_prediction(report):
    for one in report.plans:
        assert len(one.times_ms) == 3
        assert one.times_ms[0] <= one.median_ms <= one.times_ms[-1]
    judged = [replace(report.plans[0], predicted_ms=ms).is_within_spread for ms in (0, report.plans[0].median_ms, 1e9)]
    assert judged == [False, True, False]
    assert replace(report.plans[0], predicted_ms=0, profile_ms=report.plans[0].median_ms).is_profile_within_spread
    assert not replace(report.plans[0], profile_ms=0).is_profile_within_spread
    assert 0 <= report.num_within_spread <= len(report.plans)


def test_without_a_calibration_the_profile_alone_predicts(report):
    assert report.drift == {}
    assert all(one.predicted_ms == one.profile_ms for one in report.plans)


def test_probes_tell_how_fast_the_host_is_compared_with_its_calibration(plans):
    """A calibration that tells of each probe a time of its own: each way is scaled by its own probe."""
    sizes = [message_size(plan) for plan in probe_plans(PROFILE.chunk_bytes)]
    assert [way(size, PROFILE.chunk_bytes) for size in sizes] == ["header", "ring", "socket"]

    def cells(readers, *times_ms):
        return [
            MeasuredCell(readers, size.total_bytes, size.num_unique_tensors, size.num_items, 9, 1.0, 1.0, 1.0, ms)
            for size, ms in zip(sizes, times_ms, strict=True)
        ]

    now_ms = [[1.0, 1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0], [20.0, 24.0, 28.0, 32.0, 36.0]]
    assert host_drift(cells(2, 2.0, 2.5, 8.0), 2, now_ms, PROFILE.chunk_bytes) == {
        "header": 1.0,  # the upper quartile is 3
        "ring": 1.0,
        "socket": 3.5,  # the lower quartile is 24, the median 28
    }
    assert host_drift(cells(2, 6.0, 8.0, 28.0), 2, now_ms, PROFILE.chunk_bytes) == {
        "header": 1 / 6,
        "ring": 3 / 8,
        "socket": 1.0,
    }
    sent = [plans.plan([]), plans.plan([plans.feature(0, plans.handle(4096))])]
    report = run_real_broadcast(sent, 2, PROFILE, 3, measured=[*cells(4, 1e9, 1e9, 1e9), *cells(2, 1e-6, 1e6, 1.0)])
    empty, small = report.plans
    assert report.drift["header"] > 1e3
    assert report.drift["ring"] < 1e-3
    assert empty.predicted_ms == empty.profile_ms * report.drift["header"]
    assert small.predicted_ms == small.profile_ms * report.drift["ring"]
    assert len(empty.times_ms) == 3
    unknown = run_real_broadcast(sent, 1, PROFILE, 1, measured=cells(4, 1.0, 1.0, 1.0))
    assert unknown.drift == {}, "nothing was measured with one rank"


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda one: {"wires": (*one.wires, WireBytes(1, 5))}, "are_bytes_equal"),
        (lambda one: {"received_bytes": ((1, one.size.total_bytes),)}, "are_bytes_equal"),
        (lambda _: {"predicted_wire": WireBytes(2, 2)}, "are_bytes_equal"),
        (lambda one: {"rank_digests": (one.sender_digests, one.sender_digests[::-1])}, "are_digests_equal"),
    ],
)
def test_a_difference_anywhere_is_told(report, change, claim):
    first, *others = report.plans
    changed = replace(report, plans=(replace(first, **change(first)), *others))
    assert not getattr(changed, claim)


def test_nothing_to_compare_is_refused(plans):
    for some, repeats in (([], 3), ([plans.plan([])], 0)):
        with pytest.raises(InputError, match="at least one of each"):
            run_real_broadcast(some, 2, PROFILE, repeats)
