"""A bug planted for each law of the simulator, which it must find; and what routers may read (SIM-BLIND)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from simulator_laws import (
    PUSH,
    computed_after_leaving,
    figures,
    gets_faster,
    is_blind,
    is_same,
    outcome,
    play,
    steady_file,
)

from epdsim.core.request import KvTransfer
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.cost import LinearEncode, Link
from epdsim.cost.lm import decode_stepper
from epdsim.events import LegSent, RequestFinished
from epdsim.fleet.ec.producer import Keeper
from epdsim.fleet.encode import EncodeInstance
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import ClientLeftError
from epdsim.fleet.lines import Line
from epdsim.fleet.orchestrators.calls import Calls
from epdsim.fleet.orchestrators.decode_first import DecodeFirst
from epdsim.fleet.routing import ROUTERS, LeastLoaded, RoundRobin, router


class SentTo:
    """What a router may know of an instance; whatever else it asks for is an error."""

    def __init__(self, instance) -> None:
        self._instance = instance

    @property
    def outstanding(self) -> int:
        return self._instance.outstanding


def choices(told, monkeypatch, *, through=SentTo):
    """Where legs go when every router is shown instances through something."""
    shown = {}

    def veiled(*asked):
        inner = router(*asked)

        def choose(pool, prompt, mm_hashes=()):
            seen = [shown.setdefault(id(one), through(one)) for one in pool]
            return pool[seen.index(inner(seen, prompt, mm_hashes))]

        return choose

    with monkeypatch.context() as patch:
        for module in ("calls", "encoding"):
            patch.setattr(f"epdsim.fleet.orchestrators.{module}.router", veiled)
        return [one.to for one in play(told)[0] if isinstance(one, LegSent)]


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_routers_read_nothing_of_an_instance_but_what_was_sent_to_it(monkeypatch, name) -> None:
    """SIM-BLIND: shown no more than its own books, the orchestrator chooses as it does when it could look inside."""
    told = steady_file(router=name)
    assert choices(told, monkeypatch) == [one.to for one in play(told)[0] if isinstance(one, LegSent)]


STYLES = [{"orchestrator": "batched"}, {"orchestrator": "decode_first"}, {"ec": {"kind": "pull"}}, PUSH]


class TestPlantedBugs:
    """Each law finds the bug that was put in for it, some of them those of peers, and nothing without one."""

    @pytest.mark.parametrize("style", [{}, *STYLES], ids=str)
    def test_without_a_bug_every_law_holds(self, style):
        told = steady_file(**style)
        assert play(told)[1] == {}
        assert outcome(play(told)[0]) == outcome(play(told, by_step=True)[0])
        assert figures(told, by_step=False) == figures(told, by_step=True)
        assert (is_same(told), gets_faster(told), is_blind(told)) == (True, [], True)

    def test_a_request_that_ends_twice(self, monkeypatch):
        whole = EngineInstance._finish_request

        def twice(engine, request_id):
            whole(engine, request_id)
            engine._world.emit(RequestFinished(engine._world.env.now, engine.name, request_id, 20))

        monkeypatch.setattr(EngineInstance, "_finish_request", twice)
        assert "SIM-BOOKS" in play(steady_file("aggregated"))[1]

    def test_an_encoder_that_takes_more_than_it_can(self, monkeypatch):
        whole = EncodeInstance.__init__

        def greedy(instance, world, name, pool, *more):
            whole(instance, world, name, replace(pool, max_batch_items=10 * pool.max_batch_items), *more)

        monkeypatch.setattr(EncodeInstance, "__init__", greedy)
        told = steady_file()
        told["costs"]["encode"]["fixed_ms"] = 200
        assert "encodes" in play(told)[1]["SIM-CAP"]

    def test_a_link_that_forgets_that_it_is_taken(self, monkeypatch):
        whole = Line.send

        def forgetful(line, sizes):
            line._free_ms = 0.0
            return whole(line, sizes)

        monkeypatch.setattr(Line, "send", forgetful)
        assert "link begins a transfer" in play(steady_file())[1]["SIM-CAP"]

    def test_a_link_that_is_twice_as_fast(self, monkeypatch):
        monkeypatch.setattr(Link, "transfer_ms", lambda link, nbytes: nbytes * 500.0 / link.bandwidth_bytes_per_s)
        assert "bytes in a time for" in play(steady_file())[1]["SIM-CAP"]

    def test_an_engine_that_hides_its_queue(self, monkeypatch):
        monkeypatch.setattr(Scheduler, "num_waiting", 0)
        assert "SIM-LITTLE" in play(steady_file("aggregated"))[1]

    def test_an_answer_without_a_first_token(self, monkeypatch):
        monkeypatch.setattr(EngineInstance, "_emit_first_token", lambda *_: None)
        assert "SIM-ORDER" in play(steady_file())[1]

    def test_one_counter_for_two_pools(self, monkeypatch):
        """BLIS: with two of each every request goes to the same prefill and the same decode instance."""
        shared = RoundRobin()
        monkeypatch.setattr("epdsim.fleet.orchestrators.calls.router", lambda *_: shared)
        assert "SIM-FAIR" in play(steady_file("p+d"))[1]

    def test_ties_that_always_go_to_the_first(self, monkeypatch):
        monkeypatch.setattr(LeastLoaded, "__call__", lambda _, pool, *__: min(pool, key=lambda one: one.outstanding))
        told = steady_file("aggregated", router="least_loaded")
        told["workload"] |= {"rate_req_s": 2, "num_requests": 120}
        assert "SIM-FAIR" in play(told)[1]

    @pytest.mark.parametrize("style", [{"ec": {"kind": "pull"}}, PUSH], ids=["pull", "push"])
    def test_an_encoder_that_hands_on_what_it_never_made(self, monkeypatch, style):
        assert play(steady_file("e+pd", **style))[1] == {}
        monkeypatch.setattr(Keeper, "has", lambda *_: True)
        assert "no encoder has completed" in play(steady_file("e+pd", **style))[1]["EC-READY"]

    def test_a_consumer_that_is_always_the_same_one(self, monkeypatch):
        """Chosen before its leg is sent, and judged then."""
        monkeypatch.setattr(RoundRobin, "__call__", lambda _, pool, *__: pool[0])
        told = steady_file("e+pd", **PUSH)
        told["fleet"]["encode"]["count"] = 1
        assert "prefill-0 takes a second prefill leg" in play(told)[1]["SIM-FAIR"]

    def test_a_decode_engine_that_does_not_wait_for_what_is_pushed(self, monkeypatch):
        monkeypatch.setattr("epdsim.fleet.orchestrators.decode_first.AWAITED", KvTransfer())
        monkeypatch.setattr(DecodeFirst, "_fill", lambda *_: iter(()))
        broken = play(steady_file(orchestrator="decode_first"))[1]
        assert {"KV-HAND", "SIM-ORDER"} <= set(broken)

    def test_an_engine_that_never_wakes(self, monkeypatch):
        monkeypatch.setattr(EngineInstance, "_wake", lambda *_: None)
        assert "SIM-PROG" in play(steady_file())[1]

    def test_steps_at_once_that_take_longer(self, monkeypatch):
        def slow(lm):
            usual = decode_stepper(lm)
            return lambda *load: [1.01 * one for one in usual(*load)]

        monkeypatch.setattr("epdsim.fleet.stepping.decode_stepper", slow)
        told = steady_file("aggregated")
        assert outcome(play(told)[0]) != outcome(play(told, by_step=True)[0])
        assert figures(told, by_step=False) != figures(told, by_step=True)

    def test_a_router_that_throws_dice(self, monkeypatch):
        dice = random.Random(1)
        monkeypatch.setattr(RoundRobin, "__call__", lambda _, pool, *__: dice.choice(pool))
        assert not is_same(steady_file())

    def test_a_cost_that_falls(self, monkeypatch):
        monkeypatch.setattr(LinearEncode, "encode_ms", lambda cost, _: 100.0 - cost.fixed_ms)
        assert gets_faster(steady_file()) == ["fixed_ms"]

    def test_a_router_that_looks_into_an_engine(self, monkeypatch):
        def fresh(_, pool, *__):
            return min(pool, key=lambda one: one._scheduler.num_running)

        monkeypatch.setattr(LeastLoaded, "__call__", fresh)
        with pytest.raises(AttributeError, match="_scheduler"):
            choices(steady_file("aggregated", router="least_loaded"), monkeypatch)

    def test_a_router_that_reads_the_end_of_the_answer(self, monkeypatch):
        whole = Calls.choose_prefill

        def knowing(calls, task):
            calls._to_prefill._next = task.source.output_tokens
            return whole(calls, task)

        monkeypatch.setattr(Calls, "choose_prefill", knowing)
        assert not is_blind(steady_file("aggregated"))


def test_an_engine_that_does_not_hear_of_clients_that_left_is_found_out(monkeypatch) -> None:
    told = {**steady_file(router="round_robin"), "clients": {"leave_share": 1.0, "leave_ms": 150}}
    assert computed_after_leaving(told) == []

    def deaf(engine, job) -> None:
        waiting, job.done = job.done, engine._world.env.event()
        waiting.fail(ClientLeftError())

    monkeypatch.setattr(EngineInstance, "leave", deaf)
    monkeypatch.setattr(EngineInstance, "abort", lambda *_: None)
    assert computed_after_leaving(told)
