"""SIM-QUEUE: where queueing theory knows the answer, the simulator gives it; a place too many is noticed.

Simulated waits are those of Lindley's recursion over the same arrivals, to the nanosecond; and the recursion's mean over many
arrivals is that of the closed form.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from statistics import mean

import pytest

from epdsim.cost import LinearLm, Link, RenderCost
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.events import Admitted, Rendered, RequestArrived, RequestFinished, RequestQueued, StepFinished
from epdsim.fleet import RenderPool
from epdsim.fleet.world import Desk

SERVICE_MS = 10.0
NUM = 300


def arrivals(load, servers=1, count=NUM):
    """Times that keep each of so many servers busy for a share of the time."""
    stream, now_ms = random.Random(7), 0.0
    for _ in range(count):
        now_ms += stream.expovariate(load * servers / SERVICE_MS)
        yield now_ms


def waits(times, service_ms, servers=1):
    """Lindley's recursion: each waits for the first server that gets free."""
    free = [0.0] * servers
    for now_ms in times:
        begin_ms = max(now_ms, free[0])
        heapq.heapreplace(free, begin_ms + service_ms)
        yield begin_ms - now_ms


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_the_recursion_is_m_d_1(load):
    """The mean wait of Pollaczek and Khinchine."""
    simulated = mean(waits(arrivals(load, count=400_000), SERVICE_MS))
    assert simulated == pytest.approx(load * SERVICE_MS / (2 * (1 - load)), rel=0.03)


def front_end_waits(run_fleet, small_fleet, chat, load, servers):
    base = small_fleet(render=RenderPool(servers))
    costs = replace(base.costs, render=RenderCost(fixed_ms=SERVICE_MS, text_token_us=0.0))
    requests = [chat(str(n), at_ms, text=1, output=1) for n, at_ms in enumerate(arrivals(load, servers))]
    run = run_fleet(replace(base, costs=costs), requests)
    came = {one.request_id: one.time_ms for one in run.of(RequestArrived)}
    return [one.time_ms - one.duration_ms - came[one.request_id] for one in run.of(Rendered)]


@pytest.mark.parametrize(("load", "servers"), [(0.3, 1), (0.8, 1), (0.8, 3)])
def test_a_front_end_is_a_queue_of_so_many_servers(run_fleet, small_fleet, chat, load, servers):
    simulated = front_end_waits(run_fleet, small_fleet, chat, load, servers)
    assert simulated == pytest.approx(list(waits(arrivals(load, servers), SERVICE_MS, servers)), abs=1e-3)


def test_a_place_too_many_is_noticed(run_fleet, small_fleet, chat, monkeypatch):
    """The planted bug."""
    whole = Desk.__init__
    monkeypatch.setattr(Desk, "__init__", lambda desk, world, capacity: whole(desk, world, capacity + 1))
    simulated = front_end_waits(run_fleet, small_fleet, chat, 0.8, 1)
    assert mean(simulated) < 0.5 * mean(waits(arrivals(0.8), SERVICE_MS))


def test_an_engine_that_takes_one_request_at_a_time_is_a_queue_and_busy_as_often_as_it_should_be(
    run_fleet, small_fleet, chat
):
    base = small_fleet(render=RenderPool(1000))
    lm = LinearLm(fixed_ms=SERVICE_MS, prefill_token_ms=0.0)
    one_by_one = replace(base.prefill, tp=1, lm=lm, scheduler=replace(base.prefill.scheduler, max_num_seqs=1))
    requests = [chat(f"r{n:04d}", at_ms, text=1, output=1) for n, at_ms in enumerate(arrivals(0.6))]
    run = run_fleet(replace(base, prefill=one_by_one), requests)
    came = [one.time_ms for one in run.of(RequestQueued)]
    steps = run.of(StepFinished)
    service_ms = mean(one.duration_ms for one in steps)
    simulated = [admitted.time_ms - at_ms for admitted, at_ms in zip(run.of(Admitted), came, strict=True)]
    assert simulated == pytest.approx(list(waits(came, service_ms)), abs=0.05)
    rate_per_ms = len(steps) / steps[-1].time_ms
    assert run.metrics.busy_ms["engine-0"] / steps[-1].time_ms == pytest.approx(rate_per_ms * service_ms)


def test_at_low_load_a_request_takes_what_its_stages_take(run_fleet, small_fleet, chat):
    """The estimate for a steady state without queues, added up by hand: arrivals far apart wait for nobody."""
    base = small_fleet(render=RenderPool(1))
    lm = LinearLm(fixed_ms=4.0, prefill_token_ms=0.25, decode_request_ms=0.5)
    free = BroadcastProfile(
        fixed_ms=0.0, per_reader_ms=0.0, per_item_ms=0.0, ring_copy_bytes_per_ms=1e12, deserialise_bytes_per_ms=1e12
    )
    costs = replace(
        base.costs, render=RenderCost(fixed_ms=3.0, text_token_us=0.0), hop_ms=0.5, body_link=Link(1e15), broadcast=free
    )
    requests = [chat(f"r{n}", at_ms, text=20, output=5) for n, at_ms in enumerate(arrivals(0.01, count=30))]
    run = run_fleet(replace(base, costs=costs, prefill=replace(base.prefill, lm=lm)), requests)
    came = {one.request_id: one.time_ms for one in run.of(RequestArrived)}
    # Render, hop, a step of 40 prompt tokens, four steps of one request.
    expected_ms = 3.0 + 0.5 + (4.0 + 40 * 0.25) + 4 * (4.0 + 0.5)
    taken_ms = [one.time_ms - came[one.request_id] for one in run.of(RequestFinished)]
    assert len(taken_ms) == 30
    assert taken_ms == pytest.approx([expected_ms] * 30, rel=1e-3)
