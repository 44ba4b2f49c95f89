"""Statements about whole runs, which no monitor of one run can judge: tests compare the runs."""

from __future__ import annotations

from epdsim.spec.property import Property

EQUIVALENCES = (
    Property(
        "FWD-EQ",
        "Advancing many steps at once equals advancing them one by one.",
        "Figures of a fast simulation would be other figures.",
        "engine",
        stands_as=(
            "tests/property/test_scheduler_steady_laws.py::test_steps_taken_at_once_equal_steps_taken_one_by_one",
            "tests/property/test_cost_strides.py::test_steps_timed_together_equal_steps_timed_alone",
            "tests/property/test_simulator_laws.py::test_no_law_is_broken_and_steps_at_once_are_steps_one_by_one",
            "tests/property/test_simulator_planted_bugs.py::test_steps_at_once_that_take_longer",
        ),
    ),
    Property(
        "DES-EQ",
        "The same workload through the simulator and through the bare core gives the same decisions.",
        "The simulator would be a second set of rules.",
        "fleet",
        stands_as=(
            "tests/unit/fleet/test_fleet_des_eq.py::test_the_simulator_decides_what_the_bare_core_decides",
            "tests/unit/fleet/test_fleet_des_eq.py::test_an_engine_with_an_order_of_its_own_is_noticed",
        ),
    ),
)
