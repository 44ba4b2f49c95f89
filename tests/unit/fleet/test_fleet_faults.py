"""Faults: what is lost, sent again and served all the same; links that are shared, slow or cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.cost import Link
from epdsim.events import (
    EcEvicted,
    EncodeFinished,
    EncodeRunFinished,
    FirstToken,
    InstanceBack,
    InstanceLost,
    KvTransferred,
    LegRecovered,
    LegRetried,
    LegSent,
    LinkUsed,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepFinished,
)
from epdsim.fleet import Faults, LinkSharing, Loss
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import Pace
from epdsim.spec import Outcome, judge, properties_of


def pools_of(base, count):
    """The same fleet with so many of each."""
    return replace(
        base,
        prefill=replace(base.prefill, count=count),
        decode=base.decode and replace(base.decode, count=count),
        encode=base.encode and replace(base.encode, count=count),
    )


def ends(run):
    return Counter(one.request_id for one in run.events if isinstance(one, (RequestFinished, RequestFailed)))


class TestLosses:
    def test_another_engine_goes_on_where_the_lost_one_stood(self, run_fleet, small_fleet, chat):
        faults = Faults([Loss("engine-0", 60.0)], detect_ms=5.0)
        run = run_fleet(replace(pools_of(small_fleet(), 2), faults=faults), [chat("a", output=30)])
        (retried,) = run.of(LegRetried)
        assert (retried.lost, retried.time_ms, retried.attempt) == ("engine-0", 65.0, 1)
        assert 0 < retried.delivered_tokens < 30
        first, second = run.of(RequestQueued)
        assert (second.instance, second.num_delivered_tokens) == ("engine-1", retried.delivered_tokens)
        assert second.num_prompt_tokens == first.num_prompt_tokens + retried.delivered_tokens
        assert second.max_tokens == 30 - retried.delivered_tokens
        (finished,) = run.of(RequestFinished)
        assert (finished.instance, finished.output_tokens) == ("engine-1", 30)
        assert len(run.of(FirstToken)) == 1, "the client sees a first token once"
        (recovered,) = run.of(LegRecovered)
        assert recovered.lost_ms == 60.0
        assert run.metrics.recovery_ms.max == recovered.time_ms - 60.0
        assert (run.metrics.completed, run.metrics.retries) == (1, 1)

    @pytest.mark.parametrize("topology", ["p+d", "e+p+d"])
    @pytest.mark.parametrize("pool", ["prefill", "decode"])
    def test_losing_half_of_a_pool_loses_no_request(self, run_fleet, small_fleet, chat, topology, pool):
        requests = [chat(f"r{number}", 10.0 * number, images=["sun"], output=20) for number in range(12)]
        whole = pools_of(small_fleet(topology), 2)
        busy = [one.time_ms for one in run_fleet(whole, requests).of(StepFinished) if one.instance == f"{pool}-1"]
        at_ms = busy[len(busy) // 2] - 0.25
        run = run_fleet(replace(whole, faults=Faults([Loss(f"{pool}-1", at_ms, 200.0)])), requests)
        assert run.metrics.completed == 12
        assert run.metrics.retries > 0
        assert ends(run) == Counter({one.request_id: 1 for one in requests})
        assert [one.time_ms for one in (*run.of(InstanceLost), *run.of(InstanceBack))] == pytest.approx(
            [at_ms, 200.0], abs=1e-6
        )
        to_it = [one.time_ms for one in run.of(LegSent) if one.to == f"{pool}-1"]
        assert to_it
        assert not any(at_ms < time < 200.0 for time in to_it), "nothing is sent where everything is lost"

    def test_items_of_a_lost_encoder_are_encoded_by_another(self, run_fleet, small_fleet, chat):
        whole = pools_of(small_fleet("e+pd"), 2)
        requests = [chat(f"r{name}", images=[name]) for name in ("sun", "moon", "sea", "sand")]
        done = min(one.time_ms for one in run_fleet(whole, requests).of(EncodeFinished) if one.instance == "encode-0")
        run = run_fleet(replace(whole, faults=Faults([Loss("encode-0", done - 0.25)])), requests)
        retried = run.of(LegRetried)
        assert [one.leg for one in retried] == ["encode"] * len(retried) != []
        assert {one.instance for one in run.of(EncodeFinished)} == {"encode-1"}
        assert run.metrics.completed == 4
        assert len(run.of(LegRecovered)) == len(retried)

    def test_a_pool_that_is_lost_for_good_fails_its_requests_and_says_why(self, run_fleet, small_fleet, chat):
        for topology, name in (("aggregated", "engine-0"), ("e+pd", "encode-0"), ("p+d", "decode-0")):
            faults = Faults([Loss(name, 5.0)], give_up_ms=100.0)
            fleet = replace(small_fleet(topology), faults=faults)
            run = run_fleet(fleet, [chat("a", images=["sun"]), chat("b", 500.0, images=["sun"])])
            assert (run.metrics.failed, run.metrics.refused, run.metrics.completed) == (2, 0, 0), topology
            assert all("none came back within 100 ms" in one.reason for one in run.of(RequestFailed))
            assert not any(one.stuck for one in run.of(RequestFailed))

    def test_a_pool_that_comes_back_in_time_serves_who_waited(self, run_fleet, small_fleet, chat):
        fleet = replace(small_fleet("p+d"), faults=Faults([Loss("decode-0", 5.0, 90.0)], give_up_ms=100.0))
        run = run_fleet(fleet, [chat("a"), chat("b")])
        assert run.metrics.completed == 2
        assert min(one.time_ms for one in run.of(FirstToken)) > 90.0

    def test_retries_are_counted_and_come_to_an_end(self, run_fleet, small_fleet, chat):
        losses = [Loss("engine-0", 40.0, 41.0), Loss("engine-0", 80.0, 81.0)]
        for allowed, completed in ((1, 0), (2, 1)):
            fleet = replace(small_fleet(), faults=Faults(losses, max_retries=allowed))
            run = run_fleet(fleet, [chat("a", output=30)])
            assert run.metrics.completed == completed
            assert run.metrics.retries == allowed
        fleet = replace(small_fleet(), faults=Faults(losses, max_retries=0))
        (failed,) = run_fleet(fleet, [chat("a", output=30)]).of(RequestFailed)
        assert failed.reason == "the request was lost with its instance 1 times, and no more than 0 retries are allowed"

    def test_a_kv_cache_dies_with_the_engine_that_holds_it(self, run_fleet, small_fleet, chat):
        base = pools_of(small_fleet("p+d"), 2)
        slow = replace(base, costs=replace(base.costs, kv_link=Link(1e6)))
        (came,) = run_fleet(slow, [chat("a")]).of(KvTransferred)
        lost = replace(slow, faults=Faults([Loss("prefill-0", came.time_ms - 1.0)]))
        run = run_fleet(lost, [chat("a")])
        assert [one.lost for one in run.of(LegRetried)] == ["prefill-0"]
        assert [one.source for one in run.of(KvTransferred)] == ["prefill-1"]
        assert run.metrics.completed == 1


class TestPlantedBugs:
    """LIVE-WAIT and LIVE-HEAL hold, and no more where losses are not told, or an engine that comes back does nothing."""

    def judged(self, run_fleet, small_fleet, chat):
        requests = [chat(f"r{number}", 30.0 * number, output=20) for number in range(12)]
        faults = Faults(
            [Loss("engine-1", 200.0, 220.0), Loss("engine-0", 280.0, 300.0)], detect_ms=5.0, give_up_ms=50.0
        )
        run = run_fleet(replace(pools_of(small_fleet(), 2), faults=faults), requests)
        verdicts = judge(run.events, properties_of(["LIVE-WAIT", "LIVE-HEAL"]))
        return {name: one.outcome for name, one in verdicts.items()}

    def test_without_a_bug_both_hold(self, run_fleet, small_fleet, chat):
        assert set(self.judged(run_fleet, small_fleet, chat).values()) == {Outcome.HOLDS}

    def test_callers_that_are_not_told_of_a_loss(self, run_fleet, small_fleet, chat, monkeypatch):
        monkeypatch.setattr(EngineInstance, "give_up_lost", lambda _: None)
        assert set(self.judged(run_fleet, small_fleet, chat).values()) == {Outcome.VIOLATED}

    def test_an_engine_that_comes_back_and_does_nothing(self, run_fleet, small_fleet, chat, monkeypatch):
        monkeypatch.setattr(EngineInstance, "come_back", lambda engine: setattr(engine, "_is_lost", False))
        assert self.judged(run_fleet, small_fleet, chat)["LIVE-HEAL"] is Outcome.VIOLATED


def test_embeddings_that_are_evicted_are_encoded_again(run_fleet, small_fleet, chat):
    requests = [chat("a", images=["sun"]), chat("b", 1000.0, images=["sun"])]
    assert run_fleet(small_fleet("e+pd"), requests).metrics.encoded_items == 1
    run = run_fleet(replace(small_fleet("e+pd"), faults=Faults(ec_evictions_ms=[500.0])), requests)
    assert [len(one.mm_hashes) for one in run.of(EcEvicted)] == [1]
    assert (run.metrics.encoded_items, run.metrics.completed) == (2, 2)


def test_leases_outlive_an_eviction(run_fleet, small_fleet, chat):
    (ready,) = run_fleet(small_fleet("e+pd"), [chat("a", images=["sun"])]).of(EncodeFinished)
    faults = Faults(ec_evictions_ms=[ready.time_ms + 0.25])
    run = run_fleet(replace(small_fleet("e+pd"), faults=faults), [chat("a", images=["sun"])])
    assert [one.mm_hashes for one in run.of(EcEvicted)] == [[]]
    assert run.metrics.completed == 1


def test_an_encoder_is_slow_in_its_span_only(run_fleet, small_fleet, chat):
    requests = [chat("a", images=["sun"]), chat("b", 1000.0, images=["moon"])]
    usual = run_fleet(small_fleet("e+pd"), requests).of(EncodeRunFinished)
    faults = Faults(slow_encoders={"encode-0": [(0.0, 500.0, 0.25)]})
    slow = run_fleet(replace(small_fleet("e+pd"), faults=faults), requests).of(EncodeRunFinished)
    assert [one.duration_ms for one in slow] == pytest.approx([4 * usual[0].duration_ms, usual[1].duration_ms])


class TestLinks:
    def test_shared_links_move_one_after_the_other(self, run_fleet, small_fleet, chat):
        base = pools_of(small_fleet("p+d"), 2)
        costs = replace(base.costs, kv_link=Link(1e6))
        requests = [chat("a"), chat("b")]
        times = {}
        for sharing in ("none", "instance", "fleet"):
            run = run_fleet(replace(base, costs=replace(costs, sharing=LinkSharing(kv=sharing))), requests)
            times[sharing] = [one.time_ms for one in run.of(KvTransferred)]
        one_ms = 60.0  # 60 tokens of 1,000 bytes
        assert times["none"] == times["instance"], "each to a decode engine of its own"
        assert times["fleet"][0] == times["none"][0]
        assert times["fleet"][1] == pytest.approx(times["none"][0] + one_ms, abs=1e-6)

    def test_bodies_wait_for_each_other_where_their_link_is_shared(self, run_fleet, small_fleet, chat):
        base = small_fleet()
        slow = replace(base.costs, body_link=Link(1e5))
        requests = [chat("a"), chat("b")]
        apart = run_fleet(replace(base, costs=slow), requests).of(RequestQueued)
        shared = run_fleet(replace(base, costs=replace(slow, sharing=LinkSharing(body="fleet"))), requests)
        first, second = shared.of(RequestQueued)
        assert (first.time_ms, apart[0].time_ms) == (apart[1].time_ms, first.time_ms)
        used = shared.of(LinkUsed)
        assert [one.begins_ms for one in used[1:]] == [one.ends_ms for one in used[:-1]]
        assert second.time_ms == pytest.approx(used[1].ends_ms + 0.5, abs=1e-6)

    def test_fair_links_move_side_by_side(self, run_fleet, small_fleet, chat):
        base = pools_of(small_fleet("p+d"), 2)
        costs = replace(base.costs, kv_link=Link(1e6))
        requests = [chat("a"), chat("b")]
        alone, together = (
            run_fleet(replace(base, costs=replace(costs, sharing=LinkSharing(kv=sharing))), requests)
            for sharing in ("fair-instance", "fair-fleet")
        )
        first, second = (one.time_ms for one in alone.of(KvTransferred))
        assert first == second, "each to a decode engine of its own"
        assert [one.time_ms for one in together.of(KvTransferred)] == pytest.approx([first + 60.0] * 2, abs=1e-6)
        used = [one for one in together.of(LinkUsed) if one.is_fair]
        assert [one.ends_ms - one.begins_ms for one in used] == pytest.approx([120.0] * 2, abs=1e-6)

    def test_what_must_know_its_end_does_not_share_fairly(self, run_fleet, small_fleet, chat):
        apart = small_fleet("e+pd")
        with pytest.raises(InputError, match="read from a store within a step"):
            run_fleet(replace(apart, costs=replace(apart.costs, sharing=LinkSharing(ec="fair-fleet"))), [chat("a")])
        base = replace(small_fleet("p+d"), orchestrator="decode_first")
        fair = replace(base.costs, sharing=LinkSharing(kv="fair-instance"))
        with pytest.raises(InputError, match="layers are pushed while"):
            run_fleet(replace(base, costs=replace(fair, kv_layers=2)), [chat("a")])
        assert run_fleet(replace(base, costs=fair), [chat("a")]).of(KvTransferred)

    def test_what_is_on_a_cut_link_waits(self, run_fleet, small_fleet, chat):
        (usual,) = run_fleet(small_fleet("p+d"), [chat("a")]).of(KvTransferred)
        faults = Faults(links={"kv": [(usual.time_ms - 0.01, usual.time_ms + 100.0, 0.0)]})
        (late,) = run_fleet(replace(small_fleet("p+d"), faults=faults), [chat("a")]).of(KvTransferred)
        assert late.time_ms == pytest.approx(usual.time_ms + 100.01, abs=1e-5)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])), max_size=4),
    st.integers(0, 200),
    st.integers(0, 200),
)
def test_a_pace_does_the_work_that_its_speeds_add_up_to(gaps, start_ms, work_ms):
    spans, now = [], 0
    for gap, length, speed in gaps:
        spans.append((float(now + gap), float(now + gap + length), speed))
        now += gap + length
    end_ms = Pace(spans).end_ms(start_ms, work_ms)
    done = end_ms - start_ms
    for begin, until, speed in spans:
        done -= (1.0 - speed) * max(0.0, min(end_ms, until) - max(start_ms, begin))
    assert done == pytest.approx(work_ms, abs=1e-6)
    assert end_ms >= start_ms
