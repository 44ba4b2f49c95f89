"""Embeddings that engines pull from encoders, or that are pushed to them: by hand, and when something is lost on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from epdsim.core.ec.pull import FIRST
from epdsim.core.ec.read import Reads
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.cost import Link
from epdsim.events import (
    Admitted,
    EcEvicted,
    EcLoaded,
    EncodeFinished,
    EncodeSpared,
    FirstToken,
    InstanceChosen,
    LegRetried,
    LegSent,
    RequestFailed,
    RequestFinished,
    StepPlanned,
)
from epdsim.fleet import EcConfig, EncodePool, Faults, Loss
from epdsim.spec import OF_FLEETS, judge

PULL, PUSH = EcConfig("pull"), EcConfig("push")
EMBEDS = 64
"""Of a picture of 224 x 224, which the family makes one of 256 x 256."""

EMBEDDING_BYTES = EMBEDS * 4 * 4096 * 2
"""In a model with three DeepStack levels, whose hidden size is 4,096, in two bytes each."""


def fleet_of(small_fleet, ec=PULL, topology="e+pd", encoders=1, engines=1, link=None, **changes):
    style = {"orchestrator": "push"} if ec.kind == "push" else {}
    base = small_fleet(topology, ec=ec, encode=EncodePool(encoders, 2), **style, **changes)
    costs = replace(base.costs, ec_link=link or base.costs.ec_link)
    return replace(base, costs=costs, prefill=replace(base.prefill, count=engines))


def times(run, kind):
    return [one.time_ms for one in run.of(kind)]


def judged(run):
    """Nothing is broken, everybody ends once."""
    ends = Counter(one.request_id for one in run.events if isinstance(one, (RequestFinished, RequestFailed)))
    assert set(ends.values()) == {1}
    return {name: one.first.told for name, one in judge(run.events, OF_FLEETS).items() if one.first is not None}


@pytest.mark.parametrize("topology", ["e+pd", "e+p+d"])
@pytest.mark.parametrize("ec", [PULL, PUSH], ids=["pull", "push"])
def test_all_are_served_and_no_law_is_broken(run_fleet, small_fleet, chat, topology, ec) -> None:
    album = [
        chat("a", 0.0, images=["sun", "moon"]),
        chat("b", 3.0, images=["moon", "moon"]),
        chat("c", 4.0),
        chat("d", 500.0, images=["sun", "moon"]),
    ]
    run = run_fleet(fleet_of(small_fleet, ec, topology, encoders=2, engines=2), album)
    assert run.metrics.completed == 4
    assert judged(run) == {}
    (payloads,) = {
        tuple(one.payloads) for one in run.of(Admitted) if one.request_id == "d" and not one.num_remote_tokens
    }
    assert "full" not in payloads


class TestPull:
    def test_a_read_is_asked_for_granted_and_moved(self, run_fleet, small_fleet, chat) -> None:
        """There and back with the latency of the link, then the bytes; the engine waits so long before it admits."""
        link = Link(1e9, latency_ms=3.0)
        run = run_fleet(fleet_of(small_fleet, link=link), [chat("a", images=["sun"])])
        (sent,) = [one for one in run.of(LegSent) if one.leg == "prefill"]
        (admitted,), (loaded,) = run.of(Admitted), run.of(EcLoaded)
        assert loaded.embedding_bytes == EMBEDDING_BYTES
        asked_ms = sent.time_ms + 0.5 + sent.body_bytes / 1e6
        assert loaded.time_ms == pytest.approx(asked_ms + 3 * 3.0 + EMBEDDING_BYTES / 1e6, abs=1e-5)
        assert admitted.time_ms == loaded.time_ms

    def test_what_an_encoder_keeps_is_not_encoded_again_and_what_an_engine_keeps_not_read_again(
        self, run_fleet, small_fleet, chat
    ) -> None:
        requests = [chat(name, 200.0 * number, images=["sun"]) for number, name in enumerate("abc")]
        run = run_fleet(fleet_of(small_fleet), requests)
        assert (len(run.of(EncodeFinished)), len(run.of(EncodeSpared)), len(run.of(EcLoaded))) == (1, 2, 1)
        assert len([one for one in run.of(LegSent) if one.leg == "encode"]) == 3
        run = run_fleet(fleet_of(small_fleet, encoders=2), requests)
        assert (len(run.of(EncodeFinished)), len(run.of(EncodeSpared))) == (2, 1), "each encoder for itself"
        run = run_fleet(fleet_of(small_fleet, encoders=2, router="media_affinity"), requests)
        assert (len(run.of(EncodeFinished)), len(run.of(EncodeSpared))) == (1, 2), "the router knows who has it"

    def test_what_is_evicted_before_it_is_read_is_encoded_again(self, run_fleet, small_fleet, chat) -> None:
        """Evicted while the call is on its way to the engine; the encoder refuses, and the request begins anew."""
        requests = [chat("a", images=["sun"])]
        (ready_ms,) = times(run_fleet(fleet_of(small_fleet), requests), EncodeFinished)
        faults = Faults(ec_evictions_ms=[ready_ms + 0.25])
        run = run_fleet(fleet_of(small_fleet, faults=faults), requests)
        (evicted,), (retried,) = run.of(EcEvicted), run.of(LegRetried)
        assert (evicted.instance, len(evicted.mm_hashes)) == ("encode-0", 1)
        assert (retried.leg, retried.lost, retried.attempt) == ("generate", "prefill-0", 1)
        assert (len(run.of(EncodeFinished)), run.metrics.completed) == (2, 1)
        assert judged(run) == {}

    def test_or_it_fails_with_the_reason_or_the_engine_encodes_what_came_with_it(
        self, run_fleet, small_fleet, chat
    ) -> None:
        requests = [chat("a", images=["sun"]), chat("b", 300.0)]
        (ready_ms,) = times(run_fleet(fleet_of(small_fleet), requests), EncodeFinished)
        faults, once = Faults(ec_evictions_ms=[ready_ms + 0.25]), replace(PULL, max_encodes=1)
        run = run_fleet(fleet_of(small_fleet, once, faults=faults), requests)
        (failed,) = run.of(RequestFailed)
        assert "its producer refused it" in failed.reason
        assert (run.metrics.failed, run.metrics.completed) == (1, 1)
        assert judged(run) == {}
        run = run_fleet(fleet_of(small_fleet, once, faults=faults, prefill_payload="full"), requests)
        assert (run.metrics.completed, len(run.of(EncodeFinished)), len(run.of(EcLoaded))) == (2, 1, 0)
        assert judged(run) == {}

    def test_what_an_encoder_has_no_room_for_goes_with_its_payload(self, run_fleet, small_fleet, chat) -> None:
        small = replace(PULL, producer_embeds=EMBEDS - 1)
        run = run_fleet(fleet_of(small_fleet, small), [chat("a", images=["sun"])])
        (admitted,) = run.of(Admitted)
        assert (admitted.payloads, run.of(EcLoaded), run.metrics.completed) == (["full"], [], 1)
        (sent,) = [one for one in run.of(LegSent) if one.leg == "prefill"]
        assert sent.body_bytes > 500_000, "nothing is offered of it"
        assert judged(run) == {}

    def test_room_is_made_of_what_was_used_longest_ago(self, run_fleet, small_fleet, chat) -> None:
        two = replace(PULL, producer_embeds=2 * EMBEDS)
        requests = [
            chat(str(place), 200.0 * place, images=[name]) for place, name in enumerate(["a", "b", "c", "b", "a"])
        ]
        run = run_fleet(fleet_of(small_fleet, two), requests)
        assert (len(run.of(EncodeFinished)), len(run.of(EncodeSpared))) == (4, 1)

    def test_a_read_that_outlasts_its_lease_brings_nothing(self, run_fleet, small_fleet, chat) -> None:
        """The link takes 40 ms: under a lease of 30 it is as good as a read that failed, once for each time of being encoded."""
        slow = Link(EMBEDDING_BYTES / 0.040)
        for lease_ms, completed in ((30.0, 0), (50.0, 1)):
            ec = replace(PULL, lease_ms=lease_ms, wait_ms=500.0, max_encodes=2)
            run = run_fleet(fleet_of(small_fleet, ec, link=slow), [chat("a", images=["sun"])])
            assert run.metrics.completed == completed
            assert len(run.of(EcLoaded)) == (1 if completed else 2)
            assert all("outlasted the lease" in one.reason for one in run.of(RequestFailed))
            assert judged(run) == {}

    def test_entries_that_make_room_in_vain_are_told_too(self, run_fleet, small_fleet, chat, monkeypatch) -> None:
        """ENC-CONS: room for one picture in each cache; what is evicted for a request that then finds no blocks is gone."""
        freed: list[str] = []
        num_idle = 0
        schedule = Scheduler.schedule

        def watched(scheduler):
            nonlocal num_idle
            plan = schedule(scheduler)
            freed.extend(plan.free_encoder_mm_hashes)
            num_idle += bool(plan.free_encoder_mm_hashes) and not plan.total_num_scheduled_tokens
            return plan

        monkeypatch.setattr(Scheduler, "schedule", watched)
        one = replace(PULL, consumer_embeds=EMBEDS)
        faults = Faults(ec_evictions_ms=[10.0 * place for place in range(1, 40)])
        base = fleet_of(small_fleet, one, encoders=2, prefill_payload="full", faults=faults)
        cramped = replace(base.prefill.scheduler, encoder_cache_size=EMBEDS, num_gpu_blocks=20)
        released = IDEAL.replacing("but for", {FIRST.name: named("vllm-0.32").replacements[FIRST.name]})
        fleet = replace(base, prefill=replace(base.prefill, scheduler=cramped), dialect=released)
        requests = [chat(f"r{place}", images=[f"{place} {other}" for other in "abc"], output=1) for place in range(6)]
        run = run_fleet(fleet, requests)
        assert num_idle
        assert [mm_hash for plan in run.of(StepPlanned) for mm_hash in plan.free_encoder_mm_hashes] == freed
        assert judged(run) == {}

    def test_an_encoder_that_is_lost_does_not_answer(self, run_fleet, small_fleet, chat) -> None:
        """Nobody says so: the engine asks again and waits as long as it may, then the item is encoded by the other one."""
        requests = [chat("a", images=["sun"])]
        fleet = fleet_of(small_fleet, replace(PULL, wait_ms=300.0, answer_ms=50.0), encoders=2)
        (ready_ms,) = times(run_fleet(fleet, requests), EncodeFinished)
        run = run_fleet(replace(fleet, faults=Faults([Loss("encode-0", ready_ms + 0.25)])), requests)
        assert [one.instance for one in run.of(EncodeFinished)] == ["encode-0", "encode-1"]
        (retried,) = run.of(LegRetried)
        assert 300.0 < retried.time_ms - ready_ms < 300.0 + 102.0, "an idle engine looks every 100 ms"
        assert run.metrics.completed == 1
        assert judged(run) == {}

    def test_an_idle_engine_looks_again_every_100_ms_however_often_it_was_woken(
        self, run_fleet, small_fleet, chat, monkeypatch
    ) -> None:
        """Others' embeddings come meanwhile, in messages each of which wakes it and gives it nothing to compute."""
        looks: list[float] = []
        look = Reads.look
        monkeypatch.setattr(Reads, "look", lambda self, now_ms: looks.append(now_ms) or look(self, now_ms))
        ec = replace(PULL, wait_ms=5000.0, answer_ms=50.0, max_encodes=1)
        fleet = fleet_of(small_fleet, ec, encoders=2, link=Link(1e8, latency_ms=5.0))
        (ready_ms,) = times(run_fleet(fleet, [chat("a", images=["sun"])]), EncodeFinished)
        fleet = replace(fleet, faults=Faults([Loss("encode-0", ready_ms + 0.25)]))
        others = [chat(f"b{place}", 150.0 * place, images=[f"moon {place}"]) for place in range(1, 9)]
        looks.clear()
        run = run_fleet(fleet, [chat("a", images=["sun"]), *others])
        assert (run.metrics.failed, run.metrics.completed) == (1, 8)
        alone = [now_ms for now_ms in looks if now_ms > times(run, RequestFinished)[-1] + 100.0]
        assert len(alone) > 30
        assert {round(later - now_ms, 6) for now_ms, later in pairwise(alone)} == {100.0}


class TestPush:
    def test_the_consumer_is_chosen_first_and_gets_the_embedding_before_the_call(
        self, run_fleet, small_fleet, chat
    ) -> None:
        run = run_fleet(fleet_of(small_fleet, PUSH, engines=2), [chat("a", images=["sun"]), chat("b", 0.0)])
        (chosen,), (loaded,) = run.of(InstanceChosen), run.of(EcLoaded)
        (encode,) = [one for one in run.of(LegSent) if one.leg == "encode"]
        (prefill,) = [one for one in run.of(LegSent) if (one.leg, one.request_id) == ("prefill", "a")]
        assert chosen.time_ms == encode.time_ms < prefill.time_ms
        assert chosen.to == prefill.to == loaded.instance
        (encoded_ms,) = times(run, EncodeFinished)
        assert loaded.time_ms == pytest.approx(encoded_ms + EMBEDDING_BYTES / 1e6, abs=1e-5)
        assert judged(run) == {}

    def test_each_request_is_pushed_its_own(self, run_fleet, small_fleet, chat) -> None:
        requests = [chat(name, 200.0 * number, images=["sun"]) for number, name in enumerate("abc")]
        run = run_fleet(fleet_of(small_fleet, PUSH), requests)
        assert (len(run.of(EncodeFinished)), len(run.of(EncodeSpared)), len(run.of(EcLoaded))) == (1, 2, 3)

    def test_workers_hold_no_more_than_the_encoder_cache(self, run_fleet, small_fleet, chat) -> None:
        """With room for one picture of two, the second is loaded when the first is past; the release loads both at once."""
        base = fleet_of(small_fleet, PUSH)
        cramped = replace(base.prefill.scheduler, encoder_cache_size=EMBEDS, max_num_encoder_input_tokens=EMBEDS)
        fleet = replace(base, prefill=replace(base.prefill, scheduler=cramped))
        for dialect, broken in ((IDEAL, set()), (named("vllm-0.32"), {"ENC-CONS"})):
            run = run_fleet(replace(fleet, dialect=dialect), [chat("a", images=["sun", "moon"])])
            assert (run.metrics.completed, judged(run).keys()) == (1, broken)

    @pytest.mark.parametrize("moment", ["pushed to", "called", "generates"])
    def test_a_lost_consumer_costs_an_encode(self, run_fleet, small_fleet, chat, moment) -> None:
        requests = [chat("a", images=["sun"], output=20)]
        fleet = fleet_of(small_fleet, PUSH, encoders=2, engines=2)
        whole = run_fleet(fleet, requests)
        (encoded_ms,), (admitted_ms,), (first_ms,) = (
            times(whole, one) for one in (EncodeFinished, Admitted, FirstToken)
        )
        at_ms = {"pushed to": encoded_ms + 0.01, "called": admitted_ms + 1.0, "generates": first_ms + 8.0}[moment]
        run = run_fleet(replace(fleet, faults=Faults([Loss("prefill-0", at_ms)])), requests)
        assert [one.to for one in run.of(InstanceChosen)] == ["prefill-0", "prefill-1"]
        assert [one.leg for one in run.of(LegSent)] == ["encode", "prefill"] * 2
        assert run.of(EcLoaded)[-1].instance == "prefill-1"
        assert (run.metrics.completed, run.metrics.retries) == (1, 1)
        assert judged(run) == {}

    def test_a_push_that_does_not_come_in_time_is_made_again(self, run_fleet, small_fleet, chat) -> None:
        """The encoder is lost while its push is under way: its leg has been answered, so that only the engine can tell."""
        requests = [chat("a", images=["sun"])]
        fleet = fleet_of(small_fleet, replace(PUSH, wait_ms=300.0), encoders=2)
        (encoded_ms,) = times(run_fleet(fleet, requests), EncodeFinished)
        run = run_fleet(replace(fleet, faults=Faults([Loss("encode-0", encoded_ms + 0.25)])), requests)
        assert [one.instance for one in run.of(EncodeFinished)] == ["encode-0", "encode-1"]
        assert [(one.leg, one.lost) for one in run.of(LegRetried)] == [("generate", "prefill-0")]
        assert run.metrics.completed == 1
        assert judged(run) == {}


def test_a_decode_engine_that_preempts_what_it_cannot_compute_again_gives_it_back(run_fleet, small_fleet, chat) -> None:
    """It was sent no media: the prompt, with what the client has, is computed by prefill once more, and handed over again."""
    base = small_fleet("p+d")
    tight = replace(base.decode, scheduler=replace(base.decode.scheduler, num_gpu_blocks=24))
    requests = [chat(name, images=["sun"], output=60) for name in "ab"]
    run = run_fleet(replace(base, decode=tight, prefill=replace(base.prefill, count=2)), requests)
    retried = run.of(LegRetried)
    assert {one.lost for one in retried} == {"decode-0"}
    assert all(0 < one.delivered_tokens < 60 for one in retried)
    assert {one.request_id: one.output_tokens for one in run.of(RequestFinished)} == {"a": 60, "b": 60}
    assert judged(run) == {}
    run = run_fleet(replace(base, decode=tight, ec=EcConfig(max_encodes=1)), requests)
    (failed,) = run.of(RequestFailed)
    assert "preempted" in failed.reason
    assert judged(run) == {}
