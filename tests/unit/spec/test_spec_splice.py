"""What workers tell: rows that are spliced in, what their encoders are fed, whose embeddings they gather."""

from __future__ import annotations

import pytest

from epdsim.core.rules import IDEAL
from epdsim.core.workers import worker
from epdsim.events import EncoderFed, EngineStarted, Gathered, ItemInfo, RequestQueued, StepPlanned, StepYielded
from epdsim.spec import REGISTER, Outcome, judge, properties_of
from epdsim.sut.reference import reference_engine
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.hunt import Hunter, drawn
from epdsim.testing.workloads import engine_cases

E = "e0"
STARTED = EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4, has_workers=True)
QUEUED = RequestQueued(0, E, "a", 6, 2, [ItemInfo("image", "x", 1, 4, [1, 0, 1, 1])], [1] * 6)
PLANNED = StepPlanned(0, E, 0, {"a": 4}, num_computed_tokens={"a": 0})
DONE = StepYielded(0, E, 0, {}, ["a"], [], 4)


def outcome(name, *events):
    return judge([STARTED, QUEUED, PLANNED, *events, DONE], [REGISTER[name]])[name].outcome


def gathered(places, rows, **more):
    return Gathered(0, E, "a", 0, 1, 4, True, places, rows, **more)


@pytest.mark.parametrize(
    ("places", "rows", "expected"),
    [
        ([1, 3], [0, 1], Outcome.HOLDS),
        ([1, 2], [0, 1], Outcome.VIOLATED),
        ([1, 3], [0, 2], Outcome.VIOLATED),
        ([1, 3], [0], Outcome.VIOLATED),
        ([1, 2, 3], [0, 1, 2], Outcome.VIOLATED),
    ],
)
def test_rows_stand_where_they_should(places, rows, expected):
    assert outcome("SPLICE-EQ", gathered(places, rows)) is expected


def test_what_is_not_spliced_in_at_all_is_missed_unless_the_worker_is_lost():
    assert outcome("SPLICE-EQ") is Outcome.VIOLATED
    assert outcome("SPLICE-EQ", EncoderFed(0, E, "a", 0, "none")) is Outcome.INCONCLUSIVE
    assert outcome("SPLICE-EQ", Gathered(0, E, "a", 0, 1, 4, False)) is Outcome.INCONCLUSIVE


def test_a_worker_without_pixels_and_an_embedding_of_something_else():
    assert outcome("STRIP-AVAIL", EncoderFed(0, E, "a", 0, "metadata")) is Outcome.VIOLATED
    assert outcome("STRIP-AVAIL", EncoderFed(0, E, "a", 0, "full")) is Outcome.INCONCLUSIVE
    assert outcome("ENC-KEY", gathered([1, 3], [0, 1], is_own=False)) is Outcome.VIOLATED
    assert outcome("ENC-HIT", Gathered(0, E, "a", 0, 1, 4, False)) is Outcome.VIOLATED


def every_token(span, start, end, num_rows):
    """A mask that is lost on the way (vLLM PR 54548)."""
    first = start - span.offset
    return list(range(start, end)), list(range(first, min(first + end - start, num_rows)))


def first_rows(span, start, end, num_rows):
    """Every chunk begins with the first row."""
    places = [place for place in range(start, end) if span.is_embed is None or span.is_embed[place - span.offset]]
    return places, list(range(min(len(places), num_rows)))


@pytest.mark.parametrize("defect", [every_token, first_rows])
def test_a_planted_defect_is_caught(monkeypatch, defect):
    monkeypatch.setattr(worker, "spliced", defect)
    system = SystemUnderTest("planted", "1", "0.32.0", reference_engine(IDEAL))
    hunter = Hunter(system, budget=120, properties=properties_of(["SPLICE-EQ"]))
    assert hunter.explored(drawn("workloads", engine_cases(), level="engine")).verdicts["SPLICE-EQ"].num_broken


def test_a_worker_that_forgets_pixels_is_caught(monkeypatch):
    """The plans are right; what the worker keeps is not."""
    monkeypatch.setattr(worker.Worker, "_has_payload", lambda _self, _name, _index: False)
    system = SystemUnderTest("planted", "1", "0.32.0", reference_engine(IDEAL))
    hunter = Hunter(system, budget=10, properties=properties_of(["STRIP-AVAIL"]))
    assert hunter.explored(drawn("workloads", engine_cases(), level="engine")).verdicts["STRIP-AVAIL"].num_broken
