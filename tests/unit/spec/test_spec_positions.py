"""Positions judged: ways of one prompt compared with its whole, on events made by hand and on planted defects."""

from __future__ import annotations

import pytest

from epdsim.core.positions import VLLM_0_32
from epdsim.core.rules import IDEAL, Replacement
from epdsim.events import PositionsComputed
from epdsim.spec import REGISTER, Outcome, judge, properties_of
from epdsim.sut.probe_positions import ReferencePositions
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.failures import told_failure
from epdsim.testing.hunt import Hunter, drawn
from epdsim.testing.positions import position_cases

WHOLE = ([0, 1, 1, 2, 3], [0, 1, 2, 2, 3])


def computed(how, columns=WHOLE, start=0, end=5, delta=-1, items=1, **more):
    return PositionsComputed(0, "p", "c0", "mrope", how, start, end, columns, delta, items, **more)


def outcome(name, *events):
    return judge([computed("whole"), *events], [REGISTER[name]])[name].outcome


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (computed("chunk", ([1, 2], [2, 2]), 2, 4), Outcome.HOLDS),
        (computed("chunk", ([1, 2], [2, 2]), 2, 4, items=0), Outcome.INCONCLUSIVE),
        (computed("chunk", ([2, 2], [2, 2]), 2, 4), Outcome.VIOLATED),
        (computed("resumed", delta=0), Outcome.VIOLATED),
        (computed("turn", ([0, 1, 1], [0, 1, 2]), 0, 3, delta=0), Outcome.HOLDS),
        (computed("metadata", (), refused="no grid"), Outcome.VIOLATED),
    ],
)
def test_every_way_gives_the_same(event, expected):
    assert outcome("POS-EQ", event) is expected


def test_only_what_is_not_computed_counts_after_a_strip():
    stripped = {"start": 3, "num_computed": 3, "num_covered": 1}
    assert outcome("POS-SUFFIX", computed("stripped", ([2, 3], [2, 3]), **stripped)) is Outcome.HOLDS
    assert outcome("POS-SUFFIX", computed("stripped", ([3, 4], [3, 4]), **stripped)) is Outcome.VIOLATED
    assert outcome("POS-SUFFIX", computed("stripped")) is Outcome.INCONCLUSIVE


class OfTheChunkAlone(ReferencePositions):
    """Counts only the media of the chunk (smg PR 2366)."""

    def columns(self, scheme, num_prompt_tokens, features, start, end):
        seen = [one for one in features if one.position.end > start]
        return super().columns(scheme, num_prompt_tokens, seen, start, end)


def hunter(positions, name):
    system = SystemUnderTest("planted", "1", "0.32.0", positions=positions)
    return Hunter(system, budget=80, properties=properties_of([name]))


CASES = drawn("positions", position_cases(), level="positions")
UNKEPT = {"strip.kept": Replacement(lambda _item: None, "planted")}


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("POS-EQ", OfTheChunkAlone()),
        ("POS-SUFFIX", ReferencePositions(IDEAL.replacing("planted", UNKEPT))),
        ("POS-SUFFIX", ReferencePositions(IDEAL.replacing("planted", {**UNKEPT, **VLLM_0_32}))),
    ],
)
def test_a_planted_defect_is_caught(name, positions):
    hunting = hunter(positions, name)
    assert hunting.explored(CASES).verdicts[name].num_broken
    assert 2 <= sum(". " in line[:6] for line in told_failure(hunting.smallest(CASES, name))) <= 12
