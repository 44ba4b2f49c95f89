"""EC-SYNC on events made by hand, and on a connector that forgets what it has loaded."""

from __future__ import annotations

import pytest

from epdsim.core.ec.connector import EcStep, SharedStore
from epdsim.core.rules import IDEAL
from epdsim.events import EngineStarted, ItemInfo, RequestQueued, StepPlanned
from epdsim.spec import REGISTER, Outcome, judge, properties_of
from epdsim.sut.reference import reference_engine
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.hunt import Hunter, drawn
from epdsim.testing.workloads import Traits, engine_cases

E = "e0"
STARTED = EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4, ec_role="consumer")
QUEUED = RequestQueued(0, E, "a", 6, 2, [ItemInfo("image", "x", 1, 4)], [1] * 6)


def planned(step, loads, *, encodes=(), frees=()):
    inputs = {"a": list(encodes)} if encodes else {}
    return StepPlanned(step, E, step, {"a": 3}, inputs, loads, frees, {"a": 0})


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([planned(0, ["x"])], Outcome.HOLDS),
        ([planned(0, [], encodes=[0])], Outcome.INCONCLUSIVE),
        ([planned(0, ["x"]), planned(1, ["x"])], Outcome.VIOLATED),
        ([planned(0, ["x"]), planned(1, ["x"], frees=["x"])], Outcome.HOLDS),
        ([planned(0, ["x"]), planned(1, ["x"], frees=["other"])], Outcome.HOLDS),  # evicted before it, and back at once
        ([planned(0, ["x"], encodes=[0])], Outcome.VIOLATED),
        ([planned(0, ["x", "x"])], Outcome.VIOLATED),
        ([planned(0, ["y"])], Outcome.VIOLATED),
    ],
)
def test_a_load_brings_what_is_asked_for_and_not_there(steps, expected):
    assert judge([STARTED, QUEUED, *steps], [REGISTER["EC-SYNC"]])["EC-SYNC"].outcome is expected


def test_an_engine_that_comes_back_holds_nothing():
    again = EngineStarted(5, E, "by hand", 4, 7, 8, 2, 4, 4, ec_role="consumer")
    events = [STARTED, QUEUED, planned(0, ["x"]), again, QUEUED, planned(0, ["x"])]
    for monitored in (events, [*events, planned(1, ["x"])]):
        expected = Outcome.HOLDS if monitored is events else Outcome.VIOLATED
        assert judge(monitored, [REGISTER["EC-SYNC"]])["EC-SYNC"].outcome is expected


def test_a_connector_that_loads_again_is_caught(monkeypatch):
    monkeypatch.setattr(SharedStore, "take_step", lambda self, _freed: EcStep(tuple(self._loads)))
    system = SystemUnderTest("planted", "1", "0.32.0", reference_engine(IDEAL))
    hunter = Hunter(system, budget=40, properties=properties_of(["EC-SYNC"]))
    cases = drawn("workloads", engine_cases(Traits(ec_roles=("consumer",))), level="engine")
    assert hunter.explored(cases).verdicts["EC-SYNC"].num_broken
