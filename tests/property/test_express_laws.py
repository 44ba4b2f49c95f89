"""FWD-EQ of the fast way for text: its events are, to the bit, those of the same fleet as processes, steps and plans."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from simulator_laws import ENCODER, built

from epdsim.events import Admitted, Preempted
from epdsim.fleet.express import TextFleet, can_carry
from epdsim.fleet.processes import simulate_in
from epdsim.fleet.world import World
from epdsim.testing.scenario_files import text_files

LOOPS = st.sampled_from([(None, False), (None, False), (1, False), (7, False), (7, True)])


def run_both(told, concurrency, keeps_arrivals, *, wants_detail):
    """Events of the fast way and of the other one."""
    fast, slow = [], []
    point = built(told)
    assert can_carry(point.fleet, point.workload)
    text = TextFleet(point.fleet, fast.append, wants_detail=wants_detail)
    text.run(point.workload, concurrency, keeps_arrivals=keeps_arrivals)
    world = World(point.fleet, [slow.append], wants_detail=wants_detail, takes_strides=True)
    simulate_in(world, point.family, point.workload, concurrency, keeps_arrivals=keeps_arrivals)
    return fast, slow


@pytest.mark.engine_law
@settings(max_examples=60)
@given(text_files(), LOOPS, st.booleans())
def test_events_are_those_of_processes_steps_and_plans(told, loop, wants_detail) -> None:
    fast, slow = run_both(told, *loop, wants_detail=wants_detail)
    for one, other in zip(fast, slow, strict=False):
        assert ENCODER.encode(one) == ENCODER.encode(other)
    assert len(fast) == len(slow)
    for kind in sorted({type(one).__name__ for one in fast}):
        event(kind)
    if any(isinstance(one, Admitted) and one.num_computed_tokens for one in fast):
        event("a prefix was found")
    if any(isinstance(one, Preempted) for one in fast):
        event("with preemption")
