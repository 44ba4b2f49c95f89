"""The clock of a fleet does what SimPy's does, in the same order within an instant."""

from __future__ import annotations

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from epdsim.fleet.clock import alarm, begin, run

NUM_EVENTS = 3
waits = st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 2.0]))
fires = st.tuples(st.sampled_from(["fire", "fail", "await"]), st.integers(0, NUM_EVENTS - 1))
programs = st.recursive(
    st.lists(waits | fires, max_size=4),
    lambda inner: st.lists(waits | fires | st.tuples(st.just("begin"), inner), max_size=5),
    max_leaves=6,
)


class LostError(Exception):
    """What a process of these programs copes with."""


def story(program, after, begin, run):
    """What the processes of a program do, and when, until nothing is left to do."""
    env = simpy.Environment(0.0)
    told, events = [], [env.event() for _ in range(NUM_EVENTS)]

    def steps(name, actions):
        for number, (verb, value) in enumerate(actions):
            told.append((env.now, name, number))
            try:
                if verb == "wait":
                    yield after(env, value)
                elif verb == "await":
                    yield events[value]
                elif verb == "begin":
                    begin(env, steps((*name, number), value))
                elif not events[value].triggered:
                    events[value].defused = True
                    events[value].succeed() if verb == "fire" else events[value].fail(LostError(number))
            except LostError as error:
                told.append((env.now, name, error.args))

    begin(env, steps((), program))
    run(env)
    return told, env.now


@given(programs)
def test_processes_go_the_way_that_they_go_in_simpy(program) -> None:
    plain = story(program, simpy.Timeout, simpy.Process, simpy.Environment.run)
    assert story(program, lambda env, delay_ms: alarm(env, delay_ms, []), begin, run) == plain


def test_an_event_that_failed_and_that_nobody_expected_ends_the_run() -> None:
    env = simpy.Environment(0.0)
    env.event().fail(LostError("nobody waits"))
    with pytest.raises(LostError, match="nobody waits"):
        run(env)


def test_an_alarm_that_is_called_off_wakes_nobody_and_conditions_take_alarms() -> None:
    env, told = simpy.Environment(0.0), list[float]()
    off = alarm(env, 1.0, [lambda _: told.append(-1.0)])
    off.callbacks.clear()

    def waits_for_either():
        yield alarm(env, 3.0, []) | alarm(env, 2.0, [])
        told.append(env.now)

    begin(env, waits_for_either())
    env.run(until=2.5)
    assert (told, env.now) == ([2.0], 2.5)
    run(env)
    assert (told, env.now) == ([2.0], 3.0)
