"""Faults that touch each other, engines that are lost while something is on its way to them, and what is judged then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.cost import Link
from epdsim.events import EngineStarted, InstanceBack, InstanceLost, KvTransferred, LegRetried, StepFinished
from epdsim.fleet import Faults, Loss
from epdsim.spec import REGISTER, judge


def broken(run):
    return {name: one.first.told for name, one in judge(run.events, REGISTER.values()).items() if one.first is not None}


@pytest.mark.parametrize("name", ["encode-0", "prefill-0", "decode-0"])
@pytest.mark.parametrize("back_ms", [20.0, 20.001, 33.3])
def test_an_instance_is_back_before_it_is_lost_again_at_the_same_moment(
    run_fleet, small_fleet, chat, name, back_ms
) -> None:
    losses = [Loss(name, back_ms, 90.1), Loss(name, 7.3, back_ms)]
    fleet = small_fleet("e+p+d", faults=Faults(losses, max_retries=5))
    run = run_fleet(fleet, [chat(f"r{number}", 5.0 * number, images=[f"p{number}"]) for number in range(8)])
    told = [type(one) for one in run.events if isinstance(one, (InstanceLost, InstanceBack))]
    assert told == [InstanceLost, InstanceBack] * 2
    assert run.metrics.completed == 8
    assert not broken(run)


def test_a_kv_cache_that_comes_to_an_engine_that_is_lost_does_not_wake_it(run_fleet, small_fleet, chat) -> None:
    base = small_fleet("p+d", orchestrator="decode_first")
    fleet = replace(base, costs=replace(base.costs, kv_link=Link(1e6)))
    requests = [chat("a", output=3)]
    (came,) = run_fleet(fleet, requests).of(KvTransferred)
    at_ms = came.time_ms - 10.0
    faults = Faults([Loss("decode-0", at_ms, came.time_ms + 100.0)], detect_ms=60.0)
    run = run_fleet(replace(fleet, faults=faults), requests)
    assert not [one for one in run.of(StepFinished) if one.instance == "decode-0" and at_ms < one.time_ms < at_ms + 60]
    assert [one.lost for one in run.of(LegRetried)] == ["decode-0"]
    assert run.metrics.completed == 1
    assert not broken(run)


def test_an_embedding_that_is_pushed_to_an_engine_that_is_lost_does_not_wake_it(run_fleet, small_fleet, chat) -> None:
    base = small_fleet("e+pd", orchestrator="push")
    base = replace(base, ec=replace(base.ec, kind="push"), costs=replace(base.costs, ec_link=Link(1e5)))
    requests = [chat(f"r{number}", 20.0 * number, images=[f"p{number}"], output=3) for number in range(4)]
    for at_ms in (30.0, 60.0, 90.0, 120.0):
        faults = Faults([Loss("prefill-0", at_ms, at_ms + 200.0)], detect_ms=150.0, max_retries=5)
        run = run_fleet(replace(base, faults=faults), requests)
        steps = [one.time_ms for one in run.of(StepFinished) if one.instance == "prefill-0"]
        assert not [time_ms for time_ms in steps if at_ms < time_ms < at_ms + 200.0]
        assert run.metrics.completed == 4
        assert not broken(run)


@pytest.mark.parametrize("topology", ["aggregated", "p+d", "e+p+d"])
def test_engines_that_draft_say_so_and_are_judged_by_what_copes(run_fleet, small_fleet, chat, topology) -> None:
    base = small_fleet(topology)
    drafting = replace(base.prefill.scheduler, speculative_method="ngram", num_speculative_tokens=3)
    fleet = replace(base, prefill=replace(base.prefill, scheduler=drafting))
    if base.decode is not None:
        decode = replace(base.decode.scheduler, speculative_method="ngram", num_speculative_tokens=3)
        fleet = replace(fleet, decode=replace(base.decode, scheduler=decode))
    run = run_fleet(fleet, [chat(f"r{number}", images=["sun"], output=9) for number in range(4)])
    assert {tuple(one.beyond) for one in run.of(EngineStarted)} == {("drafts",)}
    assert run.metrics.completed == 4
    assert not broken(run)
    verdicts = judge(run.events, REGISTER.values())
    assert verdicts["SIM-BOOKS"].num_reached
    assert not verdicts["TOK-CONS"].num_reached, "of positions nothing can be said"
    if base.decode is not None:
        assert verdicts["KV-HAND"].num_reached, "of a whole fleet everything is heard"


@pytest.mark.parametrize("kind", ["store", "pull"])
def test_a_payload_that_comes_later_is_no_strip(run_fleet, small_fleet, chat, kind) -> None:
    base = small_fleet("e+pd", prefill_payload="full")
    late = replace(base.prefill.scheduler, strip="deferred", max_num_batched_tokens=64)
    fleet = replace(base, prefill=replace(base.prefill, scheduler=late), ec=replace(base.ec, kind=kind))
    run = run_fleet(fleet, [chat(f"r{number}", images=["sun", "moon"], output=2) for number in range(3)])
    assert all(one.sends_late for one in run.of(EngineStarted))
    assert run.metrics.completed == 3
    assert not broken(run)
