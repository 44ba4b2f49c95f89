"""Every topology serves every request, and what travels between stages is what the topology says."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.prompt import TokenRun
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    FirstToken,
    KvTransferred,
    LegSent,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.fleet import TOPOLOGIES
from epdsim.workload.request import MediaRef

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def album(chat):
    return [
        chat("a", 0.0, images=["sun", "moon"]),
        chat("b", 3.0, images=["moon", "moon"]),
        chat("c", 4.0),
        chat("d", 500.0, images=["sun", "moon"]),
    ]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_request_gets_all_its_tokens(run_fleet, small_fleet, album, topology) -> None:
    run = run_fleet(small_fleet(topology), album)
    assert (run.metrics.injected, run.metrics.completed, run.metrics.unfinished) == (4, 4, 0)
    assert {event.request_id: event.output_tokens for event in run.of(RequestFinished)} == dict.fromkeys("abcd", 5)
    for request_id in "abcd":
        times = [
            next(event.time_ms for event in run.of(kind) if event.request_id == request_id)
            for kind in (RequestArrived, FirstToken, RequestFinished)
        ]
        assert times == sorted(times)
        assert times[0] < times[1]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_legs_and_hand_overs_are_those_of_the_topology(run_fleet, small_fleet, album, topology) -> None:
    run = run_fleet(small_fleet(topology), album)
    legs = {event.leg for event in run.of(LegSent)}
    expected = {
        "aggregated": {"aggregated"},
        "p+d": {"prefill", "decode"},
        "e+pd": {"encode", "prefill"},
        "e+p+d": {"encode", "prefill", "decode"},
    }
    assert legs == expected[topology]
    assert bool(run.of(KvTransferred)) == topology.endswith("p+d")
    assert bool(run.of(EncodeFinished)) == topology.startswith("e+")


def test_each_distinct_item_is_encoded_once_and_loaded_from_the_store(run_fleet, small_fleet, album) -> None:
    run = run_fleet(small_fleet("e+pd"), album)
    encoded = [mm_hash for event in run.of(EncodeFinished) for mm_hash in event.mm_hashes]
    assert len(encoded) == len(set(encoded)) == 2
    assert {event.mm_hash for event in run.of(EcLoaded)} == set(encoded)
    ready_ms = {event.mm_hashes[0]: event.time_ms for event in run.of(EncodeFinished)}
    assert all(event.time_ms >= ready_ms[event.mm_hash] for event in run.of(EcLoaded))


def test_metadata_only_prefill_is_light_and_full_is_not(run_fleet, small_fleet, chat) -> None:
    for payload in ("full", "metadata", "deferred"):
        run = run_fleet(small_fleet("e+pd", prefill_payload=payload), [chat("a", images=["sun"])])
        (leg,) = (event for event in run.of(LegSent) if event.leg == "prefill")
        assert leg.payload == payload
        assert leg.body_bytes == leg.body_bytes_by_payload[payload]
        sizes = leg.body_bytes_by_payload
        assert sizes["metadata"] < sizes["deferred"] < sizes["full"]
        admitted = run.of(Admitted)[0].payloads
        assert admitted == (["metadata"] if payload == "metadata" else ["full"])


def test_a_repeat_is_stripped_and_its_broadcast_is_light(run_fleet, small_fleet, album) -> None:
    run = run_fleet(
        small_fleet(), [replace(one, arrival_ms=index * 1000.0) for index, one in enumerate([album[0], album[0]])][:1]
    )
    assert run.metrics.broadcast_bytes == run.metrics.broadcast_bytes_unstripped
    twice = [album[0], replace(album[0], request_id="again", arrival_ms=1000.0)]
    run = run_fleet(small_fleet(), twice)
    assert run.metrics.completed == 2
    payloads = {event.request_id: event.payloads for event in run.of(Admitted)}
    assert payloads == {"a": ["full", "full"], "again": ["metadata", "metadata"]}
    assert run.metrics.broadcast_bytes < 0.6 * run.metrics.broadcast_bytes_unstripped


@pytest.mark.parametrize("strip", ["off", "admission", "deferred", "resend"])
def test_every_strip_serves_and_never_sends_more_than_none(run_fleet, small_fleet, album, strip) -> None:
    base = small_fleet()
    scheduler = replace(base.prefill.scheduler, strip=strip)
    requests = [*album, replace(album[0], request_id="again", arrival_ms=1000.0)]
    run = run_fleet(replace(base, prefill=replace(base.prefill, scheduler=scheduler)), requests)
    assert run.metrics.completed == len(requests)
    sent, unstripped = run.metrics.broadcast_bytes, run.metrics.broadcast_bytes_unstripped
    assert sent == unstripped if strip == "off" else sent < unstripped


def test_without_a_hit_the_strip_changes_nothing(run_fleet, small_fleet, album) -> None:
    """NO-HIT: same events, same bytes, same times."""
    base = small_fleet()
    off = replace(base.prefill.scheduler, enable_prefix_caching=False, strip="off")
    on = replace(off, strip="admission")
    runs = [
        run_fleet(replace(base, prefill=replace(base.prefill, scheduler=scheduler)), album) for scheduler in (off, on)
    ]
    assert runs[0].events == runs[1].events


def test_a_request_that_can_never_run_is_refused_with_the_reason(run_fleet, small_fleet, chat) -> None:
    run = run_fleet(small_fleet(), [chat("huge", text=100_000), chat("small", 1.0)])
    assert (run.metrics.completed, run.metrics.refused, run.metrics.unfinished) == (1, 1, 0)
    (failure,) = run.of(RequestFailed)
    assert failure.request_id == "huge"
    assert failure.refused


def test_a_request_that_an_engine_loses_fails_alone(run_fleet, small_fleet, chat, monkeypatch) -> None:
    """ISO: one identifier with two counts of embeddings, which content hashes rule out, so that they are broken here."""
    monkeypatch.setattr("epdsim.fleet.render.content_hash", lambda ref: ref.content)
    large = replace(
        chat("b", 1.0, images=["sun"], text=90), parts=(MediaRef("sun", height=448, width=448), TokenRun("b", 0, 9))
    )
    run = run_fleet(small_fleet(), [chat("a", images=["sun"]), large, chat("c", 2.0)])
    assert (run.metrics.completed, run.metrics.failed, run.metrics.refused, run.metrics.unfinished) == (2, 1, 0, 0)
    (failure,) = run.of(RequestFailed)
    assert failure.request_id in {"a", "b"}, "whichever came second"
    assert "encoder cache" in failure.reason


def test_a_closed_loop_keeps_its_concurrency(run_fleet, small_fleet, chat) -> None:
    run = run_fleet(small_fleet(), [chat(str(number)) for number in range(12)], concurrency=3)
    level = peak = 0
    for event in run.events:
        level += isinstance(event, RequestArrived) - isinstance(event, RequestFinished)
        peak = max(peak, level)
    assert (run.metrics.completed, peak) == (12, 3)


@given(gaps=st.lists(st.integers(0, 400), min_size=1, max_size=12), concurrency=st.integers(1, 4))
def test_a_closed_loop_that_keeps_arrivals_is_a_gate_before_an_open_one(
    run_fleet, small_fleet, chat, gaps, concurrency
) -> None:
    """Each request is sent at its arrival, or when the last but N of those before it has ended; in order."""
    times = [float(time) for time in accumulate(gaps)]
    requests = [chat(str(number), at_ms) for number, at_ms in enumerate(times)]
    run = run_fleet(small_fleet(), requests, concurrency=concurrency, keeps_arrivals=True)
    sent = {event.request_id: event.time_ms for event in run.of(RequestArrived)}
    ended = {event.request_id: event.time_ms for event in run.of(RequestFinished)}
    assert list(sent) == [str(number) for number in range(len(times))]
    for number, at_ms in enumerate(times):
        before = sorted(ended[str(earlier)] for earlier in range(number))
        free_ms = before[number - concurrency] if number >= concurrency else 0.0
        assert sent[str(number)] == pytest.approx(max(at_ms, free_ms))


def test_same_input_same_events(run_fleet, small_fleet, album) -> None:
    assert run_fleet(small_fleet("e+p+d"), album).events == run_fleet(small_fleet("e+p+d"), album).events


def test_events_come_in_order_of_time_and_steps_within_their_capacity(run_fleet, small_fleet, album) -> None:
    run = run_fleet(small_fleet("e+p+d"), album)
    times = [event.time_ms for event in run.events]
    assert times == sorted(times)
    budget = SchedulerConfig(num_gpu_blocks=512, max_num_batched_tokens=512, max_num_seqs=16).max_num_batched_tokens
    busy: dict[str, float] = {}
    for step in run.of(StepFinished):
        assert 0 < step.num_tokens <= budget
        busy[step.instance] = busy.get(step.instance, 0.0) + step.duration_ms
    assert all(total <= times[-1] for total in busy.values())
