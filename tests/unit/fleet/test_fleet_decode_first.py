"""Orchestrator `decode_first`: decode waits with its blocks, prefill pushes into them layer by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.kv.handover import layerwise_end_ms
from epdsim.cost import Link
from epdsim.events import (
    Admitted,
    FirstToken,
    KvTransferred,
    LegRetried,
    LegSent,
    LinkUsed,
    PromptComputed,
    RequestAborted,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepFinished,
)
from epdsim.fleet import Faults, Loss
from epdsim.fleet.faults import Pace
from epdsim.fleet.lines import Line
from epdsim.fleet.world import World
from epdsim.spec import OF_FLEETS, judge

SLOW = Link(1e6)
"""A prompt of 60 tokens of 1,000 bytes takes 60 ms."""


def fleet_of(small_fleet, topology="p+d", layers=1, link=SLOW, count=1, **changes):
    base = small_fleet(topology, orchestrator="decode_first", **changes)
    costs = replace(base.costs, kv_link=link, kv_layers=layers)
    pools = {name: replace(getattr(base, name), count=count) for name in ("prefill", "decode")}
    return replace(base, costs=costs, **pools)


def only(run, kind, **where):
    (found,) = (one for one in run.of(kind) if all(getattr(one, key) == value for key, value in where.items()))
    return found


def sent_to(run):
    """The decode engine that is called first."""
    return run.of(LegSent)[0].to


def broken(run):
    return {name: one.first.told for name, one in judge(run.events, OF_FLEETS).items() if one.first is not None}


@pytest.mark.parametrize("topology", ["p+d", "e+p+d"])
def test_decode_is_called_first_and_takes_over_what_prefill_computed(run_fleet, small_fleet, chat, topology) -> None:
    run = run_fleet(fleet_of(small_fleet, topology), [chat("a", images=["sun"])])
    legs = [one.leg for one in run.of(LegSent) if one.leg != "encode"]
    assert legs == ["decode", "prefill"]
    queued = only(run, RequestQueued, instance="decode-0")
    assert queued.awaits_kv
    moved, admitted = only(run, KvTransferred), only(run, Admitted, instance="decode-0")
    assert queued.time_ms < only(run, RequestQueued, instance="prefill-0").time_ms
    assert only(run, PromptComputed).time_ms < moved.time_ms == admitted.time_ms
    assert (moved.source, admitted.num_remote_tokens) == ("prefill-0", queued.num_prompt_tokens)
    assert only(run, FirstToken).instance == only(run, RequestFinished).instance == "decode-0"
    assert broken(run) == {}


@pytest.mark.parametrize("layers", [1, 4, 36])
def test_layers_move_while_the_next_are_computed(run_fleet, small_fleet, chat, layers) -> None:
    """One prompt in one step, alone in the fleet: the end is that of the pipeline of computing and moving."""
    run = run_fleet(fleet_of(small_fleet, layers=layers), [chat("a")])
    began, computed = only(run, Admitted, instance="prefill-0").time_ms, only(run, PromptComputed).time_ms
    expected = layerwise_end_ms(began, computed - began, layers, 60.0 / layers)
    assert only(run, KvTransferred).time_ms == pytest.approx(expected, abs=1e-5)
    stages = run.metrics.ttft_by_stage_ms
    assert sum(stages.values()) == pytest.approx(run.metrics.ttft_ms.mean)
    assert stages["prefill"] == pytest.approx(expected - began, abs=1e-5)


@given(
    made=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90)), min_size=1, max_size=6),
    layers=st.integers(1, 8),
)
def test_pushes_over_one_line_never_move_more_than_it_can(small_fleet, made, layers) -> None:
    """Prompts one after the other, each so long and with so many kilobytes; a kilobyte takes a millisecond."""
    used: list[LinkUsed] = []
    world = World(small_fleet(), [used.append], wants_detail=True, takes_strides=False)
    line = Line(world, "kv", SLOW, is_shared=True, pace=None)
    now_ms, free_ms = 0.0, 0.0
    for prefill_ms, kilobytes in made:
        start_ms, now_ms = now_ms, now_ms + prefill_ms
        world.env.run(until=now_ms)
        nbytes = 1000 * kilobytes * layers
        end_ms = now_ms + line.push(nbytes, start_ms + prefill_ms / layers, layers)
        alone_ms = layerwise_end_ms(start_ms, prefill_ms, layers, kilobytes)
        queued_ms = max(start_ms + prefill_ms / layers, free_ms) + kilobytes * layers
        assert end_ms == pytest.approx(max(alone_ms, queued_ms), abs=1e-4)
        free_ms = end_ms
    for one, after in pairwise(used):
        assert one.ends_ms <= after.begins_ms
    for one in used:
        assert one.sent_bytes <= 1000 * (one.ends_ms - one.begins_ms) + 1


def test_what_is_pushed_over_a_slow_line_comes_late(small_fleet) -> None:
    world = World(small_fleet(), [lambda _: None], wants_detail=False, takes_strides=False)
    line = Line(world, "kv", SLOW, is_shared=False, pace=Pace([(0.0, 100.0, 0.5)]))
    world.env.run(until=50.0)
    # From 10 on at half the speed: 20 of 40 ms by 50, the rest by 90; the last of four parts needs 20 ms from 50 on.
    assert line.push(40_000, 10.0, 4) == pytest.approx(40.0)


class TestLosses:
    @pytest.mark.parametrize("lost", ["prefill-0", "decode-0"])
    @pytest.mark.parametrize("moment", ["computes", "moves", "decodes"])
    def test_whoever_is_lost_whenever_all_requests_are_served(self, run_fleet, small_fleet, chat, lost, moment) -> None:
        fleet = fleet_of(small_fleet, layers=4, count=2)
        requests = [chat(f"r{number}", 1.0 * number, output=12) for number in range(6)]
        whole = run_fleet(fleet, requests)
        assert broken(whole) == {}
        computed, moved = only(whole, PromptComputed, request_id="r0"), only(whole, KvTransferred, request_id="r0")
        at_ms = {
            "computes": computed.time_ms - 1.0,
            "moves": (computed.time_ms + moved.time_ms) / 2,
            "decodes": moved.time_ms + 8.0,
        }[moment]
        run = run_fleet(replace(fleet, faults=Faults([Loss(lost, at_ms, at_ms + 200.0)], detect_ms=2.0)), requests)
        assert broken(run) == {}
        ends = Counter(one.request_id for one in run.events if isinstance(one, (RequestFinished, RequestFailed)))
        assert ends == Counter({one.request_id: 1 for one in requests})
        assert run.metrics.completed == 6
        assert {one.lost for one in run.of(LegRetried)} <= {lost}
        assert run.of(LegRetried) or (lost, moment) == ("prefill-0", "decodes")

    def test_the_prefill_call_that_is_on_its_way_is_not_waited_for(self, run_fleet, small_fleet, chat) -> None:
        """A body of a picture takes seconds here: that the decode engine is lost is known long before it arrives."""
        fleet = fleet_of(small_fleet, count=2)
        slow = replace(fleet, costs=replace(fleet.costs, body_link=Link(1e5)))
        requests = [chat("a", images=["sun"])]
        sent = only(run_fleet(slow, requests), LegSent, leg="prefill")
        assert sent.body_bytes > 3e5, "three seconds"
        lost_ms = sent.time_ms + 100.0
        run = run_fleet(replace(slow, faults=Faults([Loss(sent_to(run_fleet(slow, requests)), lost_ms)])), requests)
        assert only(run, LegRetried).time_ms == pytest.approx(lost_ms)
        assert run.metrics.completed == 1
        assert broken(run) == {}

    def test_a_loss_of_decode_is_noticed_while_no_prefill_engine_is_alive(self, run_fleet, small_fleet, chat) -> None:
        """All prefill engines are away when the call has its blocks: it waits for one, and for its decode engine no more."""
        fleet = fleet_of(small_fleet, count=2)
        chosen = sent_to(run_fleet(fleet, [chat("a")]))
        away = [Loss("prefill-0", 0.0, 900.0), Loss("prefill-1", 0.0, 900.0)]
        run = run_fleet(replace(fleet, faults=Faults([*away, Loss(chosen, 300.0)])), [chat("a")])
        retried = only(run, LegRetried)
        assert (retried.time_ms, retried.lost) == (300.0, chosen)
        assert run.metrics.completed == 1
        assert broken(run) == {}

    def test_when_prefill_is_lost_decode_gives_its_blocks_back(self, run_fleet, small_fleet, chat) -> None:
        fleet = fleet_of(small_fleet)
        computed = only(run_fleet(fleet, [chat("a")]), PromptComputed)
        run = run_fleet(replace(fleet, faults=Faults([Loss("prefill-0", computed.time_ms - 1.0)])), [chat("a")])
        assert [one.instance for one in run.of(RequestAborted)] == ["decode-0"] * 2, (
            "when it is lost, and when none comes back"
        )
        assert "none came back" in only(run, RequestFailed).reason
        later = replace(fleet, faults=Faults([Loss("prefill-0", computed.time_ms - 1.0, 100.0)]))
        run = run_fleet(later, [chat("a"), chat("b", 400.0)])
        assert run.metrics.completed == 2
        assert run.of(StepFinished)[-1].free_blocks == small_fleet().prefill.scheduler.num_gpu_blocks - 1
        assert broken(run) == {}


def test_a_decode_engine_without_room_keeps_prefill_waiting(run_fleet, small_fleet, chat) -> None:
    """The prompt is computed only when there are blocks to push it into."""
    fleet = fleet_of(small_fleet, link=Link(1e9))
    tight = replace(fleet.decode, scheduler=replace(fleet.decode.scheduler, num_gpu_blocks=8))
    run = run_fleet(replace(fleet, decode=tight), [chat("a", output=30), chat("b", 0.5, output=30)])
    first, second = run.of(RequestFinished)
    prefills = [one for one in run.of(LegSent) if one.leg == "prefill"]
    assert [one.request_id for one in prefills] == [first.request_id, second.request_id]
    assert prefills[1].time_ms >= first.time_ms
    assert broken(run) == {}
