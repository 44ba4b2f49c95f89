"""LIVE-WAIT and LIVE-HEAL on events made by hand; bugs planted in the fleet are in tests/unit/fleet/test_fleet_faults.py."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from verdicts import outcome

from epdsim.events import (
    FleetStarted,
    InstanceBack,
    InstanceLost,
    KvTransferred,
    LegRetried,
    LegSent,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestQueued,
)
from epdsim.spec import Outcome

FLEET = FleetStarted(0, "fleet", "p+d", "round_robin", {}, detect_ms=5.0, give_up_ms=100.0)
LOST = InstanceLost(10, "prefill-0")


def sent(leg="prefill", to="prefill-0", *, has_come=True):
    """A leg, and its engine that takes it in."""
    come = [RequestQueued(2, to, "a", 6, 5)] if has_come else []
    return [LegSent(1, "orchestrator", "a", leg, to, 100), *come]


def again(leg="generate", lost="prefill-0", at=15):
    return LegRetried(at, "orchestrator", "a", leg, lost, 1)


def ended(name="a", at=40.0):
    return RequestFinished(at, "decode-0", name, 5)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([*sent(), LOST, again(), ended()], Outcome.HOLDS),
        ([*sent(), LOST, again(at=16)], Outcome.VIOLATED),
        ([*sent(), LOST, ended()], Outcome.VIOLATED),
        ([*sent(), LOST, again("encode"), ended()], Outcome.VIOLATED),
        ([*sent(), LOST, RequestFailed(15, "orchestrator", "a", "lost"), ended("b")], Outcome.INCONCLUSIVE),
        ([*sent(to="prefill-1"), LOST, ended()], Outcome.INCONCLUSIVE),
        ([*sent(has_come=False), LOST, ended()], Outcome.INCONCLUSIVE),
        ([*sent(), KvTransferred(9, "decode-0", "a", "prefill-0", 10), LOST, ended()], Outcome.INCONCLUSIVE),
    ],
)
def test_what_is_lost_is_sent_again_or_fails_once_the_loss_is_known(events, expected):
    assert outcome("LIVE-WAIT", FLEET, *events) is expected


def arrived(name, at):
    return RequestArrived(at, "orchestrator", name, 5)


USUAL = [arrived("u", 0), ended("u", 4.0)]
"""One that meets no fault stays 4 ms, 0.8 ms for each of its 5 tokens."""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ended(at=20 + 105 + 4 + 4), Outcome.HOLDS),
        (ended(at=20 + 105 + 4 + 4.1), Outcome.VIOLATED),
        (RequestFailed(30, "orchestrator", "a", "gives up"), Outcome.HOLDS),
        (RequestFailed(30, "orchestrator", "a", "for ever", stuck=True), Outcome.VIOLATED),
    ],
)
def test_once_faults_are_over_who_is_there_ends_in_time(end, expected):
    events = [*USUAL, arrived("a", 9), LOST, InstanceBack(20, "prefill-0"), end]
    assert outcome("LIVE-HEAL", FLEET, *events) is expected


def test_a_request_that_meets_no_fault_proves_nothing():
    assert outcome("LIVE-HEAL", FLEET, *USUAL) is Outcome.INCONCLUSIVE
    assert outcome("LIVE-HEAL", FLEET, *USUAL, LOST, arrived("b", 12), ended("b", 14)) is Outcome.INCONCLUSIVE


def test_a_link_that_is_slow_meanwhile_puts_the_bound_off():
    slow = FleetStarted(0, "fleet", "p+d", "round_robin", {}, detect_ms=5.0, give_up_ms=100.0, faults_end_ms=50.0)
    events = [*USUAL, arrived("a", 9), LOST, ended(at=140)]
    assert outcome("LIVE-HEAL", slow, *events) is Outcome.HOLDS
    assert outcome("LIVE-HEAL", FLEET, *events) is Outcome.VIOLATED


def test_a_body_full_of_media_takes_as_long_as_media_do():
    """Where only text met no fault, nobody knows how long; who brings twice the bytes may take twice as long."""
    with_media = [
        Rendered(9, "render-0", name, 12, 8, ["x"], 0, size, 1.0) for name, size in (("m", 1000), ("a", 2000))
    ]
    late = [arrived("a", 9), with_media[1], LOST, ended(at=800)]
    assert outcome("LIVE-HEAL", FLEET, *USUAL, *late) is Outcome.INCONCLUSIVE
    for stay_ms, expected in ((400, Outcome.HOLDS), (40, Outcome.VIOLATED)):
        before = [arrived("m", 0), with_media[0], ended("m", stay_ms)]
        later = [replace(one, time_ms=one.time_ms + stay_ms) for one in late]
        assert outcome("LIVE-HEAL", FLEET, *before, *later) is expected
