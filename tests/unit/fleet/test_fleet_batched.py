"""Orchestrator `batched`: which items share an encode leg, and what that changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.events import EncodeFinished, EncodeRunFinished, LegRetried, LegSent, RequestFinished
from epdsim.fleet import EncodePool, Faults, Loss
from epdsim.fleet.encode import EncodeItem
from epdsim.fleet.orchestrators.batched import batches
from epdsim.spec import OF_FLEETS, judge


class Encoder:
    def __init__(self, name: str) -> None:
        self.name = name


def legs(modalities: str, num_encoders: int, max_items: int | None) -> list[tuple[str, list[str]]]:
    """Items 0, 1, ... of `i`mages and `a`udio, given to encoders in turn."""
    encoders = [Encoder(f"e{number}") for number in range(num_encoders)]
    items = [
        EncodeItem(str(place), "image" if one == "i" else "audio", 1, 1, 1, 1) for place, one in enumerate(modalities)
    ]
    grouped = batches(max_items)(items, lambda item: encoders[int(item.mm_hash) % num_encoders])
    return [(leg.instance.name, [item.mm_hash for item in leg.items]) for leg in grouped]


@pytest.mark.parametrize(
    ("modalities", "num_encoders", "max_items", "expected"),
    [
        ("iiiii", 2, None, [("e0", ["0", "2", "4"]), ("e1", ["1", "3"])]),
        ("iiiii", 2, 2, [("e0", ["0", "2"]), ("e1", ["1", "3"]), ("e0", ["4"])]),
        ("iii", 2, 1, [("e0", ["0"]), ("e1", ["1"]), ("e0", ["2"])]),
        ("iai", 1, None, [("e0", ["0", "2"]), ("e0", ["1"])]),
        ("", 1, None, []),
    ],
)
def test_pictures_of_one_encoder_share_a_leg_up_to_a_maximum(modalities, num_encoders, max_items, expected) -> None:
    assert legs(modalities, num_encoders, max_items) == expected


def fleet_of(small_fleet, style="batched", encoders=2, **changes):
    return small_fleet("e+pd", orchestrator=style, encode=EncodePool(encoders, 8), **changes)


def test_fewer_legs_the_same_items_and_less_to_send(run_fleet, small_fleet, chat) -> None:
    requests = [chat("a", images=["sun", "moon", "sea"]), chat("b", 500.0, images=["sand"])]
    runs = {style: run_fleet(fleet_of(small_fleet, style), requests) for style in ("per_item", "batched")}
    sent = {style: [one for one in run.of(LegSent) if one.leg == "encode"] for style, run in runs.items()}
    assert [(one.request_id, one.to) for one in sent["batched"]] == [
        ("a", "encode-0"),
        ("a", "encode-1"),
        ("b", "encode-1"),
    ]
    assert len(sent["per_item"]) == 4
    # Two pictures in one body: one envelope less, and the same payload.
    both = [one.body_bytes for one in sent["per_item"] if (one.request_id, one.to) == ("a", "encode-0")]
    assert max(both) < sent["batched"][0].body_bytes < sum(both)
    for run in runs.values():
        assert run.metrics.completed == 2
        assert run.metrics.encoded_items == 4


def test_a_leg_is_answered_with_its_last_item(run_fleet, small_fleet, chat) -> None:
    """An encoder that takes one item at a time: the first picture is ready a run earlier, its other reader waits for the leg."""
    requests = [chat("a", images=["sun", "moon"]), chat("b", 12.0, images=["sun"])]
    ready = {}
    for style in ("per_item", "batched"):
        fleet = replace(fleet_of(small_fleet, style, 1), encode=EncodePool(1, 1))
        run = run_fleet(fleet, requests)
        runs = [one.time_ms for one in run.of(EncodeRunFinished)]
        ready[style] = next(one.time_ms for one in run.of(LegSent) if (one.request_id, one.leg) == ("b", "prefill"))
        assert len(runs) == 2
        assert ready[style] == runs[style == "batched"]


def test_a_leg_that_is_lost_is_sent_again_whole_and_what_is_in_the_store_is_not_encoded_twice(
    run_fleet, small_fleet, chat
) -> None:
    requests = [chat("a", images=["sun", "moon", "sea", "sand"])]
    fleet = replace(fleet_of(small_fleet), encode=EncodePool(2, 1))
    done = [one.time_ms for one in run_fleet(fleet, requests).of(EncodeFinished) if one.instance == "encode-0"]
    run = run_fleet(replace(fleet, faults=Faults([Loss("encode-0", done[0] + 0.25)])), requests)
    (retried,) = run.of(LegRetried)
    assert (retried.leg, retried.lost) == ("encode", "encode-0")
    encoded = [(one.instance, *one.mm_hashes) for one in run.of(EncodeFinished)]
    assert len({mm_hash for _, mm_hash in encoded}) == len(encoded) == 4
    assert [name for name, _ in encoded].count("encode-1") == 3
    assert len(run.of(RequestFinished)) == 1
    assert [one.first for one in judge(run.events, OF_FLEETS).values() if one.first is not None] == []
