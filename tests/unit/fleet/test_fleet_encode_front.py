"""Encode instances that are sent raw media: their front end, its queue, and what is lost in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.cost.encode import LinearEncode
from epdsim.cost.render import RenderCost
from epdsim.events import EncodeFinished, LegRetried, LegSent, RequestFinished
from epdsim.fleet import EncodePool, Faults, Loss
from epdsim.spec import OF_FLEETS, judge

TABLE = ((1.0, 7.0), (1e9, 7.0))
"""Every picture takes 7 ms."""


def fronted(small_fleet, front_ends, *, encoders=1, style="per_item", **changes):
    fleet = small_fleet("e+pd", orchestrator=style, encode=EncodePool(encoders, 8, front_ends), **changes)
    render = RenderCost(TABLE, fixed_ms=3.0, item_ms=0.0, media_ms=0.0, decode_megapixel_ms=0.0, hash_bytes_per_s=1e18)
    return replace(fleet, costs=replace(fleet.costs, encode_render=render))


def arrivals(run):
    """When each leg reaches the encoder: half a millisecond of hop and the body over a gigabyte a second."""
    return [one.time_ms + 0.5 + one.body_bytes / 1e6 for one in run.of(LegSent) if one.leg == "encode"]


@pytest.mark.parametrize(
    ("front_ends", "style", "waits_ms"),
    [(1, "per_item", [10, 20, 30]), (2, "per_item", [10, 10, 20]), (3, "per_item", [10, 10, 10]), (1, "batched", [24])],
    ids=["one after the other", "two at a time", "all at once", "one leg"],
)
def test_legs_are_rendered_in_order_before_they_wait_for_the_encoder(
    run_fleet, small_fleet, chat, front_ends, style, waits_ms
) -> None:
    fleet = fronted(small_fleet, front_ends, style=style)
    at_once = replace(fleet, costs=replace(fleet.costs, encode=LinearEncode(fixed_ms=0.0, patch_ms=0.0)))
    run = run_fleet(at_once, [chat("a", images=["sun", "moon", "sea"])])
    (came,) = set(arrivals(run))
    ready = sorted({one.time_ms for one in run.of(EncodeFinished)})
    assert ready == pytest.approx(sorted({came + wait for wait in waits_ms}), abs=1e-5)
    assert run.metrics.completed == 1


def test_such_legs_carry_files_and_the_prompt_none(run_fleet, small_fleet, chat) -> None:
    requests = [chat("a", images=["sun", "moon"])]
    runs = {count: run_fleet(fronted(small_fleet, count), requests) for count in (0, 1)}
    legs = {count: [one for one in run.of(LegSent) if one.leg == "encode"] for count, run in runs.items()}
    assert {one.payload for one in legs[0]} == {"full"}
    assert {one.payload for one in legs[1]} == {"deferred"}
    assert max(one.body_bytes for one in legs[1]) < min(one.body_bytes for one in legs[0])
    (plain, raw) = ([one.body_bytes for one in run.of(LegSent) if one.leg == "prefill"] for run in runs.values())
    assert plain == raw


def test_without_a_cost_of_its_own_it_costs_what_render_does(run_fleet, small_fleet, chat) -> None:
    fleet = fronted(small_fleet, 1)
    same = replace(fleet, costs=replace(fleet.costs, encode_render=fleet.costs.render))
    default = replace(fleet, costs=replace(fleet.costs, encode_render=None))
    events = [run_fleet(one, [chat("a", images=["sun", "moon"])]).events for one in (same, default)]
    assert events[0] == events[1] != run_fleet(fleet, [chat("a", images=["sun", "moon"])]).events


def test_what_is_lost_while_it_is_rendered_is_sent_again(run_fleet, small_fleet, chat) -> None:
    requests = [chat("a", images=["sun", "moon", "sea", "sand"]), chat("b", 300.0, images=["surf"])]
    fleet = fronted(small_fleet, 1, encoders=2)
    at_ms = arrivals(run_fleet(fleet, requests))[0] + 5.0
    run = run_fleet(replace(fleet, faults=Faults([Loss("encode-0", at_ms, 200.0)])), requests)
    assert {(one.leg, one.lost) for one in run.of(LegRetried)} == {("encode", "encode-0")}
    assert len(run.of(LegRetried)) == 2
    encoded = [(one.instance, *one.mm_hashes) for one in run.of(EncodeFinished) if one.time_ms < 300.0]
    assert len({mm_hash for _, mm_hash in encoded}) == len(encoded) == 4
    assert {name for name, _ in encoded} == {"encode-1"}
    assert len(run.of(RequestFinished)) == 2
    assert [one.first for one in judge(run.events, OF_FLEETS).values() if one.first is not None] == []
