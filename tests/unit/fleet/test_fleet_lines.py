"""Fair lines: against closed forms, and against a fluid that is moved on in small exact pieces."""

from __future__ import annotations

from fractions import Fraction

import pytest
import simpy
from hypothesis import example, given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.cost import Link
from epdsim.events import LinkUsed
from epdsim.fleet.faults import Pace
from epdsim.fleet.grid import TICKS_PER_MS, on_grid
from epdsim.fleet.lines import FairLine, Line
from epdsim.spec.capacity import SimCap
from epdsim.spec.engine_state import EngineState

TICK_MS = 1 / TICKS_PER_MS
BYTES_PER_MS = 1000


class SmallWorld:
    """What a line asks of a world."""

    wants_detail = True

    def __init__(self):
        self.env = simpy.Environment(0.0)
        self.events: list[LinkUsed] = []
        self.emit = self.events.append

    def after(self, duration_ms):
        return self.env.timeout(on_grid(duration_ms))


def play(sent, *, latency_ms=0.0, spans=(), kind=FairLine, beside_ms=0.0):
    """When each of some transfers, given as (moment, bytes), is there; and what was told."""
    world, ends = SmallWorld(), {}
    pace = Pace(spans) if spans else None
    link = Link(BYTES_PER_MS * 1e3, latency_ms)
    line = (
        FairLine(world, "line", link, pace=pace)
        if kind is FairLine
        else Line(world, "line", link, is_shared=True, pace=pace)
    )

    def send(number, moment, nbytes):
        yield world.env.timeout(moment)
        yield line.transfer([nbytes], beside_ms)
        ends[number] = world.env.now

    for number, (moment, nbytes) in enumerate(sent):
        world.env.process(send(number, moment, nbytes))
    world.env.run()
    return [ends[number] for number in range(len(sent))], world.events


def fluid(sent, spans=()):
    """The same by moving an exact fluid from one change to the next, in fractions."""
    coming = sorted(
        (Fraction(moment), number, Fraction(nbytes, BYTES_PER_MS)) for number, (moment, nbytes) in enumerate(sent)
    )
    left, ends, now = {}, {}, Fraction(0)
    edges = [Fraction(edge) for begin, until, _ in spans for edge in (begin, until)]
    while coming or left:
        for number in [number for number, rest in left.items() if rest == 0]:
            ends[number] = now
            del left[number]
        while coming and coming[0][0] <= now:
            _, number, work = coming.pop(0)
            left[number] = work
        if any(rest == 0 for rest in left.values()):
            continue
        speed = next((Fraction(speed) for begin, until, speed in spans if begin <= now < until), Fraction(1))
        moments = [moment for moment, *_ in coming[:1]] + [edge for edge in edges if edge > now]
        if left and speed:
            moments.append(now + min(left.values()) * len(left) / speed)
        if not moments:
            break
        until = min(moments)
        if left:
            left = {number: rest - (until - now) * speed / len(left) for number, rest in left.items()}
        now = until
    return [float(ends[number]) for number in range(len(sent))]


def test_two_share_and_the_longer_one_has_the_rest_to_itself():
    ends, _ = play([(0, 1000), (0, 3000)])
    assert ends == pytest.approx([2, 4], abs=2 * TICK_MS)


def test_one_that_comes_later_slows_what_is_under_way():
    ends, _ = play([(0, 10_000), (4, 2000)])
    assert ends == pytest.approx([12, 8], abs=2 * TICK_MS)


def test_alone_it_takes_as_long_as_on_any_line_with_its_latency_and_its_way():
    for kind in (FairLine, Line):
        (end,), (told,) = play([(1, 12_345)], latency_ms=0.25, kind=kind, beside_ms=7.5)
        assert end == pytest.approx(1 + 12.345 + 0.25 + 7.5, abs=TICK_MS)
        assert (told.begins_ms, told.ends_ms) == pytest.approx((1, 1 + 12.345 + 0.25), abs=TICK_MS)
        assert (told.is_alone, told.is_fair) == (kind is Line, kind is FairLine)


def test_latency_takes_none_of_the_bandwidth():
    ends, _ = play([(0, 1000), (1, 1000)], latency_ms=5.0)
    assert ends == pytest.approx([6, 7], abs=2 * TICK_MS)


def test_a_cut_line_holds_all_of_them_up():
    ends, _ = play([(0, 2000), (0, 2000)], spans=[(1.0, 11.0, 0.0), (12.0, 14.0, 0.5)])
    assert ends == pytest.approx([15, 15], abs=2 * TICK_MS)


def test_nothing_to_move_is_there_at_once():
    ends, _ = play([(3, 0), (0, 9000)])
    assert ends == pytest.approx([3, 9], abs=TICK_MS)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9000)), min_size=1, max_size=14),
    st.sampled_from([(), [(2.0, 5.0, 0.0), (9.0, 20.0, 0.25), (21.0, 22.0, 3.0)]]),
)
@example([(0, 1)] * 14, ())
def test_ends_are_those_of_the_fluid_and_never_before_them(sent, spans):
    ends, told = play(sent, spans=spans)
    exact = fluid(sent, spans)
    assert ends == pytest.approx(exact, abs=2 * TICK_MS)
    assert all(end >= due - 1e-9 for end, due in zip(ends, exact, strict=True))
    if not spans:
        # All that was sent together is through when it is one after the other, too.
        one_by_one, _ = play(sent, kind=Line)
        assert max(ends) == pytest.approx(max(one_by_one), abs=(2 + len(sent)) * TICK_MS)
    assert sum(one.sent_bytes for one in told) == sum(nbytes for _, nbytes in sent)
    assert not findings(told) or any(speed > 1 for *_, speed in spans)


def findings(told):
    take, engine = SimCap().by_kind()[LinkUsed], EngineState()
    return [one for event in told for one in take(event, engine) or ()]


@pytest.mark.parametrize(
    "told",
    [
        [LinkUsed(2.0, "line", 1500, 0.0, 1.0, 1e6, is_alone=False, is_fair=True)],
        [
            LinkUsed(2.0, "line", 1500, 0.0, 2.0, 1e6, is_alone=False, is_fair=True),
            LinkUsed(3.0, "line", 1800, 1.0, 3.0, 1e6, is_alone=False, is_fair=True),
        ],
    ],
    ids=["one faster than the line", "two that are faster together"],
)
def test_the_monitor_finds_lines_that_are_too_fast(told):
    assert len(findings(told)) == (2 if len(told) == 1 else 1)


def test_the_monitor_lets_what_is_apart_in_time_pass():
    told = [LinkUsed(end, "line", 1000, end - 1.0, end, 1e6, is_alone=False, is_fair=True) for end in (1.0, 2.0, 5.0)]
    assert not findings(told)


def test_a_step_cannot_wait_for_a_fair_line():
    line = FairLine(SmallWorld(), "line", Link(1e6), pace=None)
    with pytest.raises(InputError, match="is shared fairly"):
        line.send([1])
    with pytest.raises(InputError, match="is shared fairly"):
        line.push(1, 0.0, 2)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])), max_size=4),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_a_pace_has_done_the_work_when_it_says(gaps, start_ms, work_ms):
    spans, now = [], 0
    for gap, length, speed in gaps:
        spans.append((float(now + gap), float(now + gap + length), speed))
        now += gap + length
    pace = Pace(spans)
    assert pace.work_ms(start_ms, pace.end_ms(start_ms, work_ms)) == pytest.approx(work_ms, abs=1e-6)
