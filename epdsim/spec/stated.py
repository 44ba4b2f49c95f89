"""Families whose statements stand and that no monitor judges yet; each says why, and where it is tested meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from epdsim.spec.property import Level, Property

_NO_FAULTS = "needs connectors that are late or fail, which fleets do not have yet"


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
    _stated(
        "PROTO-ID",
        "A media item keeps one identifier across encode, prefill and decode in every cache configuration.",
        "The consumer looks under a key that the producer never used.",
        "end to end",
        "needs front ends that assign identifiers",
        "vLLM PRs 56432, 12439",
        "LMCache PR 5055",
        "sglang PR 23481",
    ),
    _stated(
        "PROTO-SUFF",
        "Sufficiency is judged per item: payload, or metadata and a descriptor of that item, or a hash that can be resolved.",
        "A payload is dropped for all items because a descriptor came for one.",
        "end to end",
        "of the validator alone it is ECV-SOUND and ECV-KEYED; of an orchestrator's traffic nothing judges it yet",
        "vLLM PR 56070",
        "llm-d-router PR 2723",
        "dynamo PR 7827",
    ),
)
EMBEDDINGS = (
    _stated(
        "EC-READY",
        "An encoding is announced or served only after its bytes are complete.",
        "The consumer is told that it is missing, and never asks again.",
        "end to end",
        _NO_FAULTS,
        "vLLM PRs 47941, 53176",
    ),
    _stated(
        "EC-SYNC",
        "Connector books change exactly when the encoder cache's allocation changes, in every combination of roles.",
        "An entry is freed under a transfer, or never.",
        "engine",
        _NO_FAULTS,
        "vLLM PRs 34783, 38668",
        "LMCache issue 4938",
    ),
)
POSITIONS = (
    _stated(
        "POS-EQ",
        "Positions and the decode delta are equal for monolithic, chunked, resumed, disaggregated and streamed execution.",
        "Answers are wrong from the first token after the picture, or empty.",
        "protocol",
        "tested on the model in tests/property/test_positions_laws.py",
        "smg PR 2366",
        "dynamo PR 5281",
        "TensorRT-LLM PR 15661",
        "vLLM PR 46086",
    ),
    _stated(
        "POS-SUFFIX",
        "Positions of tokens that are not computed yet do not change when covered items are stripped.",
        "A prefix hit changes the answer.",
        "protocol",
        "tested on the model in tests/property/test_positions_laws.py; STRIP-META says that a strip leaves the fields",
        "vLLM PR 53456",
    ),
)
SESSIONS = (
    _stated(
        "SES-EQ",
        "A streamed session ends in the same state as one request with the whole prompt.",
        "A session's blocks are found under the keys of a prompt that it no longer has.",
        "engine",
        "needs sessions whose input grows",
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
        "tested in tests/property/test_scheduler_steady_laws.py",
    ),
    _stated(
        "DES-EQ",
        "The same workload through the simulator and through the bare core gives the same decisions.",
        "The simulator would be a second set of rules.",
        "fleet",
        "the simulator calls the core's scheduler; no comparison of a whole run yet",
    ),
)

GROUPS: Mapping[str, tuple[Property, ...]] = {
    "identity": IDENTITY,
    "embeddings": EMBEDDINGS,
    "positions": POSITIONS,
    "sessions": SESSIONS,
    "broadcast": BROADCAST,
}
