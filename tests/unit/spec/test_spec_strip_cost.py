"""STRIP-COST and STRIP-LATE on events made by hand, and on planted defects."""

from __future__ import annotations

from verdicts import outcome

from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler import broadcast, sessions
from epdsim.events import (
    Admitted,
    EngineStarted,
    InputQueued,
    ItemInfo,
    PayloadsSent,
    Preempted,
    RequestQueued,
    StepPlanned,
)
from epdsim.spec import Outcome, properties_of
from epdsim.sut.reference import reference_engine
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.hunt import Hunter, drawn
from epdsim.testing.modes import modes
from epdsim.testing.workloads import Traits, engine_cases

E = "e0"
IMAGE = ItemInfo("image", "x", 1, 4)
QUEUED = RequestQueued(0, E, "a", 6, 2, [IMAGE], [1] * 6)
GIVEN = InputQueued(3, E, "a", 6, 2, [IMAGE])


def started(**more):
    return EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4, **more)


def admitted(*payloads, resumed=False):
    return Admitted(4, E, "a", 6, 0, 0, payloads, resumed, [1, 2])


def test_a_session_is_told_of_new_items_alone():
    before = started(beyond=["sessions"]), QUEUED, admitted("full"), GIVEN
    assert outcome("STRIP-COST", *before, admitted("full", resumed=True)) is Outcome.HOLDS
    assert outcome("STRIP-COST", *before, admitted("none", "full", resumed=True)) is Outcome.VIOLATED
    assert (
        outcome("STRIP-COST", *before, Preempted(4, E, "a"), admitted("full", "full", resumed=True))
        is Outcome.INCONCLUSIVE
    )


def test_a_late_payload_comes_with_its_encoder_run():
    late, run = started(sends_late=True), StepPlanned(4, E, 0, {"a": 6}, {"a": [0]}, num_computed_tokens={"a": 0})
    other = StepPlanned(4, E, 0, {"a": 1}, num_computed_tokens={"a": 0})
    assert outcome("STRIP-LATE", late, QUEUED, admitted("full"), run) is Outcome.HOLDS
    assert outcome("STRIP-LATE", late, QUEUED, admitted("full"), other) is Outcome.VIOLATED
    sent = PayloadsSent(5, E, "a", {0: "full"})
    assert outcome("STRIP-LATE", late, QUEUED, admitted("metadata"), other, sent, run) is Outcome.HOLDS
    assert outcome("STRIP-LATE", late, QUEUED, admitted("metadata"), other, sent, other) is Outcome.VIOLATED
    assert outcome("STRIP-LATE", started(), QUEUED, admitted("full"), other) is Outcome.INCONCLUSIVE


def hunted(name, exploration, dialect=IDEAL):
    system = SystemUnderTest("planted", "1", "0.32.0", reference_engine(dialect))
    return Hunter(system, budget=60, properties=properties_of([name])).explored(exploration).verdicts[name]


def test_a_session_that_is_sent_whole_again_is_caught():
    again = {"sessions.broadcast": Replacement(sessions.send_again, "vLLM issue 58324")}
    assert hunted("STRIP-COST", modes("modes"), IDEAL.replacing("planted", again)).num_broken


def test_payloads_that_are_sent_at_once_are_caught(monkeypatch):
    late = drawn("late", engine_cases(Traits(strip="deferred", mismatches=False)), level="engine")
    assert not hunted("STRIP-LATE", late).num_broken
    monkeypatch.setattr(broadcast, "defer_payloads", lambda features, _scheduled, **_more: features)
    assert hunted("STRIP-LATE", late).num_broken
