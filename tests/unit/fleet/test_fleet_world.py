"""The clock of a fleet: what comes first of what is due at one instant."""

from __future__ import annotations

from epdsim.fleet.world import World


def test_steps_that_end_together_are_taken_in_order_of_engines_behind_all_else(small_fleet) -> None:
    """Whoever began first: an engine whose stride is cut begins anew, one that steps on does not (FWD-EQ)."""
    world, told = World(small_fleet(), [], wants_detail=False, takes_strides=True), list[str]()
    first, second = world.next_place(), world.next_place()
    world.at_step_end(2.0, lambda _: told.append("second engine"), second)
    world.at_step_end(2.0, lambda _: told.append("first engine"), first)
    world.after(2.0).callbacks.append(lambda _: told.append("arrival"))
    world.at_step_end(1.0, lambda _: told.append("earlier"), second)
    world.env.run()
    assert told == ["earlier", "arrival", "first engine", "second engine"]
