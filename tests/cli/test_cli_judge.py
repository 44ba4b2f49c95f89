"""`epdsim judge`: where the runs of a file of events end, and what it says of events that fit nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HEADER = {"format": "epdsim-events", "version": 1}

CHECKED = {"modality": "image", "index": 0, "mm_hash": "h0", "state": "odd"}


def event(kind, at=0, *, instance="e0", **told):
    return {"kind": kind, "time_ms": at, "instance": instance, **told}


def started(at=0, *, instance="e0", **changes):
    sizes = {"num_gpu_blocks": 99, "max_num_batched_tokens": 64, "max_num_seqs": 4, "encoder_cache_size": 64}
    settings = {"system": "mine", "block_size": 16, "max_num_encoder_input_tokens": 64, "reads_position_fields": True}
    return event("EngineStarted", at, instance=instance) | sizes | settings | changes


def queued(at=0, **item):
    cat = {"modality": "image", "identifier": "cat", "offset": 0, "length": 16, "has_position_fields": True} | item
    return event("RequestQueued", at, request_id="r0", num_prompt_tokens=48, max_tokens=4, items=[cat])


def admitted(at=1, payloads=("none",)):
    told = {"num_prompt_tokens": 48, "num_computed_tokens": 32, "num_remote_tokens": 0}
    return event("Admitted", at, request_id="r0", payloads=list(payloads)) | told


def weighed(num_groups):
    sizes = {"num_groups": num_groups, "num_patches": 3, "metadata_bytes": 5, "payload_bytes": 3_000}
    return event("MetadataWeighed", family="mine", modality="image", fields=["grid"]) | sizes


def point(num_items, name):
    """A point of a scenario whose encode instances take one item at a time."""
    yield event(
        "FleetStarted", instance="fleet", topology="e+pd", router="round_robin", pools={"encode": ["encode-0"]}
    ) | {"max_batch_items": 1}
    yield started(instance=name)
    yield event("StepFinished", 5, instance=name, step=0, num_tokens=1, num_requests=1, num_running=0) | {
        "num_waiting": 0,
        "duration_ms": 1.0,
    }
    yield event("EncodeRunFinished", 5, instance="encode-0", num_items=num_items, num_waiting=0, duration_ms=1.0)


@pytest.fixture
def judged(epdsim):
    """Judges events; outcomes by property, beside what the call came to."""

    def call(*events):
        Path("mine.ndjson").write_text("".join(json.dumps(one) + "\n" for one in (HEADER, *events)))
        called = epdsim("judge", "mine.ndjson", "--json")
        whole = json.loads(called.out) if called.out else {"verdicts": {}}
        return whole, {name: one["outcome"] for name, one in whole["verdicts"].items()}, called

    return call


STRIPPED = [started(10), queued(10), admitted(11)]
"""STRIP-META is violated: nothing of an item is sent of which positions read fields."""


@pytest.mark.parametrize("name", ["engine-0", "prefill-0"])
def test_each_point_of_a_scenario_is_judged_with_its_own_fleet(judged, name):
    for before, at in ([], 1), ([*point(1, name)], 2):
        whole, outcomes, _ = judged(*before, *point(99, "engine-0"))
        assert (whole["num_runs"], outcomes["SIM-CAP"]) == (at, "violated")
        assert "encode-0 encodes 99 items at once, most 1" in whole["stories"]["SIM-CAP"]


def test_another_engine_that_started_earlier_ends_no_run(judged):
    for events in (STRIPPED, [*STRIPPED[:2], started(0, instance="e1"), STRIPPED[2]]):
        whole, outcomes, _ = judged(*events)
        assert (whole["num_runs"], outcomes["STRIP-META"]) == (1, "violated")


def test_an_engine_that_starts_again_before_its_latest_event_begins_a_run(judged):
    whole, outcomes, _ = judged(*STRIPPED, started(0), queued(0), admitted(1, ["metadata"]))
    assert (whole["num_runs"], outcomes["STRIP-META"]) == (2, "violated")


def test_an_engine_does_not_start_twice(judged):
    _, _, called = judged(*STRIPPED[:2], started(10), STRIPPED[2])
    assert called.code == 2
    assert (
        "mine.ndjson, line 4: e0 starts at 10 ms: it has started before, and nothing says that it ended" in called.err
    )


@pytest.mark.parametrize(
    "end", [event("EngineDied", 10, reason="cuda"), event("EngineStopped", 10), event("InstanceLost", 10)]
)
def test_an_engine_that_ended_may_start_again(judged, end):
    whole, outcomes, _ = judged(*STRIPPED[:2], end, started(12), queued(12), admitted(13, ["metadata"]))
    assert (whole["num_runs"], outcomes["STRIP-META"]) == (1, "holds")


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([started(block_size=0)], "line 2: EngineStarted with block_size 0: a block holds at least one token"),
        ([weighed(-8)], "line 2: MetadataWeighed of mine: a count or a size is negative"),
        ([started(), queued(is_embed=[1])], "line 3: RequestQueued of r0 with item cat: is_embed has 1 entries"),
        ([started(), queued(offset=-1)], "line 3: RequestQueued of r0 with item cat of 16 tokens at -1"),
        (
            [started(), queued(), event("EncoderFed", request_id="r0", index=-1, payload="full")],
            "line 4: EncoderFed with item -1: items count from 0",
        ),
        (
            [event("RequestChecked", case="c", items=[CHECKED], offered=[], has_ec_params=False, accepted=True)],
            "line 2: RequestChecked of c with state 'odd': there is no such word; the words are neither, payload, metadata, both",
        ),
        ([started(), queued(), admitted(1, ["some"])], "line 4: Admitted of r0 with payload 'some'"),
        (
            [event("Rumour"), started(), queued(), event("EncoderFed", request_id="r0", index=3, payload="none")],
            "line 5: this EncoderFed does not fit what was told before (IndexError: list index out of range)",
        ),
    ],
)
def test_events_that_fit_nothing_are_one_sentence_with_their_line(judged, events, says):
    _, _, called = judged(*events)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"epdsim: mine.ndjson, {says}")
    assert called.err.count("\n") == 1


def test_a_story_is_told_where_another_engine_has_fewer_items_of_the_request(judged):
    other = event("RequestQueued", 10, instance="e1", request_id="r0", num_prompt_tokens=48, max_tokens=4)
    plan = event("StepPlanned", 11, step=1, num_scheduled_tokens={"r0": 16}, num_computed_tokens={"r0": 32})
    items = [{"modality": "image", "identifier": name, "offset": 16 * at, "length": 16} for at, name in enumerate("ab")]
    sent = event(
        "Admitted", 11, request_id="r0", num_prompt_tokens=48, num_computed_tokens=0, payloads=["full", "none"]
    )
    few = other | {"items": items[:1]}
    both = queued(10) | {"items": items}
    whole, outcomes, called = judged(started(10), both, few, sent, plan | {"scheduled_encoder_inputs": {"r0": [1]}})
    assert (called.code, outcomes["STRIP-AVAIL"]) == (1, "violated")
    assert any("is to encode b for r0" in line for line in whole["stories"]["STRIP-AVAIL"])


@pytest.mark.parametrize("state", ["neither", "payload", "metadata", "both"])
def test_what_a_checked_request_may_have_of_an_item(judged, state):
    checked = event("RequestChecked", case="c", items=[CHECKED | {"state": state}], offered=[], has_ec_params=False)
    assert judged(checked | {"accepted": False})[2].code in (0, 1)
