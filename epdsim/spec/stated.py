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
    _stated(
        "FWD-EQ",
        "Advancing many steps at once equals advancing them one by one.",
        "Figures of a fast simulation would be other figures.",
        "engine",
        "the engine that takes one step at a time is the twin; compared in tests/property/test_scheduler_steady_laws.py",
    ),
    _stated(
        "DES-EQ",
        "The same workload through the simulator and through the bare core gives the same decisions.",
        "The simulator would be a second set of rules.",
        "fleet",
        "needs the bare core beside the run; whole runs are compared in tests/unit/fleet/test_fleet_des_eq.py",
    ),
)
