"""Families whose statements stand and that no monitor judges yet; each says why, and where it is tested meanwhile."""

from __future__ import annotations

from epdsim.spec.property import Level, Property


def _stated(
    identifier: str, sentence: str, why: str, level: Level, not_judged: str, *evidence: str, twin: str = ""
) -> Property:
    return Property(identifier, sentence, why, level, evidence=evidence, not_judged=not_judged, twin=twin)


IDENTITY = (
    _stated(
        "HASH-INJ",
        "The media hash is injective over bytes, shape, dtype, mode and processing options.",
        "Two pictures share a hash, and one gets the other's answer.",
        "protocol",
        "the model takes hashes as given",
        "dynamo PR 8341",
        "sglang PR 36595",
        "vLLM issue 55547",
    ),
)
SESSIONS = (
    _stated(
        "SES-EQ",
        "A streamed session ends in the same state as one request with the whole prompt.",
        "A session's blocks are found under the keys of a prompt that it no longer has.",
        "engine",
        "events do not tell which output a turn keeps; tested in tests/property/test_scheduler_session_laws.py",
        "vLLM PR 49448",
        "vLLM issue 42489",
        "sglang PR 33716",
    ),
)
BROADCAST = (
    _stated(
        "TP-SAME",
        "All ranks receive the same payload; a message below the ring's chunk size is written once for all of them.",
        "Ranks compute different things and hang in the next collective.",
        "engine",
        "tested with worker processes and digests in tests/unit/payload/test_tp_workers.py",
    ),
    Property(
        "FWD-EQ",
        "Advancing many steps at once equals advancing them one by one.",
        "Figures of a fast simulation would be other figures.",
        "engine",
        stands_as=(
            "tests/property/test_scheduler_steady_laws.py::test_steps_taken_at_once_equal_steps_taken_one_by_one",
            "tests/property/test_cost_strides.py::test_steps_timed_together_equal_steps_timed_alone",
            "tests/property/test_simulator_laws.py::test_no_law_is_broken_and_steps_at_once_are_steps_one_by_one",
            "tests/property/test_simulator_laws.py::test_steps_at_once_that_take_longer",
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
