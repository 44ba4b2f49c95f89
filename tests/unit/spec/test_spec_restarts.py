"""An engine that was lost and begins again holds nothing: monitors that remember what it held would miss what it gets wrong."""

from __future__ import annotations

import pytest

from epdsim.events import (
    Admitted,
    EncoderFed,
    EngineStarted,
    ItemInfo,
    RequestFinished,
    RequestQueued,
    StepPlanned,
    StepYielded,
)
from epdsim.spec import REGISTER, Outcome, judge
from epdsim.spec.steps import MOST_IDLE_STEPS

E = "e0"
IMAGE = ItemInfo("image", "x", 0, 4)


def started(**changes):
    return EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4, has_workers=True, **changes)


def queued(name="a", items=(IMAGE,)):
    return RequestQueued(0, E, name, 6, 2, items, [1] * 6)


def admitted(computed=0, *, name="a", payloads=("full",)):
    return Admitted(0, E, name, 6, computed, 0, payloads, block_ids=[1, 2])


def planned(step=0, start=0, *, count=6, name="a", encodes=(), **more):
    inputs = {name: list(encodes)} if encodes else {}
    return StepPlanned(step, E, step, {name: count} if count else {}, inputs, num_computed_tokens={name: start}, **more)


WHOLE = (queued(), admitted(), planned(encodes=[0]))
"""A request with an item that is encoded and computed at once."""


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ENC-MIRROR", WHOLE, [queued(items=()), admitted(payloads=()), planned(free_encoder_mm_hashes=["x"])]),
        ("ENC-MIRROR", WHOLE, [queued(), admitted(), planned(free_encoder_mm_hashes=["x"])]),
        ("ENC-HIT", WHOLE, [queued(), admitted(), planned()]),
        ("KEY-INJ", WHOLE, [queued("b"), admitted(4, name="b"), planned(1, 4, count=2, name="b")]),
        ("RECOMP-EQ", WHOLE, [queued("b"), admitted(4, name="b"), planned(1, 4, count=2, name="b")]),
        ("TOK-CONS", WHOLE, [queued(), planned(1, 6, count=1)]),
        (
            "SPLICE-EQ",
            [*WHOLE, EncoderFed(0, E, "a", 0, "none")],
            [*WHOLE, StepYielded(1, E, 0, {"a": [1]}, ["a"], [], 4)],
        ),
    ],
)
def test_what_relies_on_what_was_lost_is_caught(name, before, after):
    lost = judge([started(), *before, started(), *after], [REGISTER[name]])[name]
    alone = judge([started(), *after], [REGISTER[name]])[name]
    assert lost.outcome is alone.outcome is Outcome.VIOLATED
    assert lost.first == alone.first


ENDED = RequestFinished(0, E, "a", 2)
WAITS = [queued(), StepYielded(0, E, 0, {}, [], ["a"], 4), *[planned(count=0)] * (MOST_IDLE_STEPS - 1)]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("LIVE-PROG", WAITS, [planned(count=0)]),
        ("LIVE-DONE", [queued(), ENDED], [ENDED]),
        ("STRIP-LATE", [queued(), admitted()], [queued(), planned(count=0)]),
        ("EC-SYNC", [queued(), admitted(), planned(ec_loads=["x"])], [queued(), admitted(), planned(ec_loads=["x"])]),
    ],
)
def test_what_an_engine_did_before_it_was_lost_is_not_held_against_it(name, before, after):
    begin = started(sends_late=True, ec_role="consumer")
    assert judge([begin, *before, begin, *after], [REGISTER[name]])[name].num_broken == 0
    assert judge([begin, *before, *after], [REGISTER[name]])[name].num_broken > 0, "it would be, had it not begun anew"


def test_engines_are_judged_apart():
    """What one engine holds another one does not."""
    other = [
        EngineStarted(0, "e1", "by hand", 4, 7, 8, 2, 4, 4),
        RequestQueued(0, "e1", "a", 6, 2, [IMAGE], [1] * 6),
        Admitted(0, "e1", "a", 6, 4, payloads=["none"], block_ids=[1, 2]),
        StepPlanned(0, "e1", 0, {"a": 2}, num_computed_tokens={"a": 4}),
    ]
    events = [started(), *WHOLE, *other]
    assert judge(events, [REGISTER["KEY-INJ"]])["KEY-INJ"].outcome is Outcome.VIOLATED
