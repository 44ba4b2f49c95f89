"""Figures of a run, from event lists whose figures are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.request import WARM_UP
from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    EncodeRunFinished,
    FirstToken,
    KvTransferred,
    LegSent,
    LinkUsed,
    Preempted,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.report.metrics import Distribution
from epdsim.report.sink import MetricsSink


def figures(*events):
    sink = MetricsSink()
    for event in events:
        sink(event)
    return sink.result()


def life(request_id, start_ms, slo_class=""):
    """One request with everything that can happen to it: 100 ms to the first token, 30 ms for two more."""
    return (
        RequestArrived(start_ms, "o", request_id, 3, slo_class),
        Rendered(start_ms + 10, "render", request_id, 120, 100, ["a", "b"], 1, 4000, 8.0),
        LegSent(start_ms + 10, "o", request_id, "encode", "encode-0", 5000, "full"),
        EncodeRunFinished(start_ms + 30, "encode-0", 1, 0, 16.0),
        EncodeFinished(start_ms + 30, "encode-0", request_id, ["a"], 640),
        LegSent(start_ms + 40, "o", request_id, "prefill", "p", 900, "metadata", {"full": 8000, "metadata": 900}),
        EcLoaded(start_ms + 50, "p", "a", 640),
        Admitted(start_ms + 50, "p", request_id, 120, 48),
        Preempted(start_ms + 60, "p", request_id),
        Admitted(start_ms + 70, "p", request_id, 120, 64, resumed=True),
        StepFinished(start_ms + 90, "p", 1, 56, 1, 1, 0, 20.0, 4.0, 1.0, 700, 9000, 10),
        LegSent(start_ms + 75, "o", request_id, "decode", "d", 400),
        KvTransferred(start_ms + 95, "d", request_id, "p", 3000),
        Admitted(start_ms + 95, "d", request_id, 120, 120, num_remote_tokens=120),
        FirstToken(start_ms + 100, "d", request_id),
        StepFinished(start_ms + 130, "d", 1, 2, 1, 0, 0, 30.0, 0.5, 0.0, 300, 300, 10, num_steps=2),
        RequestFinished(start_ms + 130, "d", request_id, 3),
    )


def test_one_request_gives_the_figures_that_its_events_tell():
    of = figures(*life("r", 1000.0))
    assert (of.injected, of.completed, of.failed, of.refused, of.unfinished) == (1, 1, 0, 0, 0)
    assert of.duration_ms == 130
    assert of.ttft_ms == Distribution(1, 100, 100, 100, 100, 100)
    stages_ms = {"front end": 10, "encode": 30, "queue": 20, "prefill": 15, "hand-over": 20, "decode": 5}
    assert of.ttft_by_stage_ms == stages_ms
    assert sum(stages_ms.values()) == 100
    assert of.tpot_ms == Distribution(1, 15, 15, 15, 15, 15)
    assert of.e2e_ms == Distribution(1, 130, 130, 130, 130, 130)
    assert (of.output_tokens, of.media_items, of.processor_cache_hits, of.encoded_items) == (3, 2, 1, 1)
    assert (of.prompt_tokens, of.prefix_hit_tokens, of.prefix_hit_rate) == (120, 48, 0.4), "of the first admission only"
    assert (of.ec_loads, of.ec_bytes, of.kv_bytes, of.preemptions) == (1, 640, 3000, 1)
    assert of.leg_bytes == {"decode": 400, "encode": 5000, "prefill": 900}
    assert of.prefill_bytes_by_payload == {"full": 8000, "metadata": 900}
    assert (of.steps, of.broadcast_bytes, of.broadcast_bytes_unstripped, of.broadcast_ms) == (3, 1000, 9300, 4.5)
    assert of.busy_ms == {"d": 30, "encode-0": 16, "p": 20}
    assert of.render_ms == Distribution(1, 8, 8, 8, 8, 8)
    assert of.encode_run_ms is not None
    assert (of.encode_run_ms.count, of.encode_run_ms.mean) == (2, 8.5), "on the encode instance, and in a step"
    assert of.request_throughput_per_s == pytest.approx(1000 / 130)
    assert of.token_throughput_per_s == pytest.approx(3000 / 130)


def test_a_warm_up_stands_in_the_books_and_in_no_other_figure():
    alone, warmed = figures(*life("r", 1000.0)), figures(*life("w", 0.0, WARM_UP), *life("r", 1000.0))
    assert (warmed.injected, warmed.completed) == (2, 2)
    names = [name for name in alone.__dataclass_fields__ if name not in ("injected", "completed")]
    assert [getattr(warmed, name) for name in names] == [getattr(alone, name) for name in names]


def test_a_run_of_nothing_and_a_run_of_warm_ups_have_no_latencies():
    for of in (figures(), figures(*life("w", 0.0, WARM_UP))):
        assert of.ttft_ms is of.tpot_ms is of.e2e_ms is None
        assert (of.duration_ms, of.request_throughput_per_s, of.token_throughput_per_s, of.prefix_hit_rate) == (
            0,
            0,
            0,
            0,
        )


def test_one_output_token_has_no_time_per_further_token():
    of = figures(
        RequestArrived(0.0, "o", "r", 1), FirstToken(7.0, "e", "r"), RequestFinished(7.0, "e", "r", 1)
    )  # fmt: skip
    assert of.ttft_ms.max == of.e2e_ms.max == 7
    assert of.tpot_ms is None


def test_the_first_of_several_first_tokens_counts():
    of = figures(
        RequestArrived(0.0, "o", "r", 2),
        FirstToken(5.0, "e", "r"),
        FirstToken(9.0, "e", "r"),
        RequestFinished(9.0, "e", "r", 2),
    )
    assert of.ttft_ms.mean == 5


def test_failures_are_told_by_reason_and_refusals_apart():
    of = figures(
        *(RequestArrived(0.0, "o", name, 1) for name in "abcd"),
        RequestFailed(1.0, "o", "a", "no room", refused=True),
        RequestFailed(1.0, "o", "b", "lost"),
        RequestFailed(2.0, "o", "c", "lost"),
    )
    assert (of.injected, of.completed, of.failed, of.refused, of.unfinished) == (4, 0, 2, 1, 1)
    assert of.failures == {"lost": 2, "no room": 1}


def test_percentiles_of_one_to_a_hundred():
    of = Distribution.of([float(value) for value in range(100, 0, -1)])
    assert (of.count, of.mean, of.p50, of.max) == (100, 50.5, 50.5, 100)
    assert (of.p90, of.p99) == (pytest.approx(90.1), pytest.approx(99.01))
    assert Distribution.of([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_in_order_and_within_the_values(values):
    of = Distribution.of(values)
    assert min(values) <= of.p50 <= of.p90 <= of.p99 <= of.max == max(values)
    assert of.count == len(values)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_those_of_numpy_to_the_last_bit(values):
    of = Distribution.of(values)
    assert [of.p50, of.p90, of.p99] == np.quantile(values, (0.5, 0.9, 0.99)).tolist()


@given(st.data())
def test_the_books_balance_at_every_moment(data):
    """Whatever order requests come, get tokens, end, fail or stay in."""
    sink, alive, time_ms, ended = MetricsSink(), {}, 0.0, 0
    for index in range(data.draw(st.integers(0, 40))):
        time_ms += data.draw(st.floats(0, 10))
        move = data.draw(st.sampled_from(["arrive", "token", "finish", "fail", "refuse"] if alive else ["arrive"]))
        if move == "arrive":
            alive[f"r{index}"] = False
            sink(RequestArrived(time_ms, "o", f"r{index}", 1, data.draw(st.sampled_from(["", WARM_UP, "batch"]))))
        else:
            name = data.draw(st.sampled_from(sorted(alive)))
            if move == "token" or (move == "finish" and not alive[name]):
                sink(FirstToken(time_ms, "e", name))
                alive[name] = True
            if move == "finish":
                sink(RequestFinished(time_ms, "e", name, data.draw(st.integers(1, 3))))
            elif move in ("fail", "refuse"):
                sink(RequestFailed(time_ms, "o", name, "why", refused=move == "refuse"))
            if move != "token":
                del alive[name]
                ended += 1
        of = sink.result()
        assert of.injected == of.completed + of.failed + of.refused + of.unfinished
        assert of.unfinished == len(alive)
        assert of.completed + of.failed + of.refused == ended == of.completed + sum(of.failures.values())
        assert (of.e2e_ms.count if of.e2e_ms else 0) <= of.completed


def test_a_detail_that_comes_last_does_not_make_a_run_longer():
    """A link tells of a transfer when it is over, to those who listen to details."""
    plain = [RequestArrived(0.0, "orchestrator", "a", 1), RequestFailed(5.0, "orchestrator", "a", "gone")]
    sinks = MetricsSink(), MetricsSink()
    for sink, events in zip(
        sinks, (plain, [*plain, LinkUsed(90.0, "kv", 10, 1.0, 90.0, 1e6, is_alone=False)]), strict=True
    ):
        for one in events:
            sink(one)
    assert sinks[0].result() == sinks[1].result()
