"""Clients that leave before their last token."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from epdsim.events import FirstToken, RequestAborted, RequestFailed, RequestFinished, StepPlanned
from epdsim.fleet import Faults, Loss

ENDS = (RequestFinished, RequestFailed)


def ends(run):
    return Counter(one.request_id for one in run.events if isinstance(one, ENDS))


def test_one_that_leaves_amid_its_answer_is_taken_out_with_the_step_and_its_tokens_are_wasted(
    run_fleet, small_fleet, chat
) -> None:
    stays, leaves = chat("stays", output=40), replace(chat("leaves", output=40), leaves_ms=100.0)
    run = run_fleet(small_fleet(), [stays, leaves])
    (failed,) = run.of(RequestFailed)
    (first,) = (one for one in run.of(FirstToken) if one.request_id == "leaves")
    assert (failed.request_id, failed.aborted, failed.refused) == ("leaves", True, False)
    assert 100 <= failed.time_ms < 100 + 7
    assert 0 < failed.output_tokens < 40
    assert first.time_ms < 100
    assert failed.output_tokens == pytest.approx((failed.time_ms - first.time_ms) / 5.2 + 1, abs=1.5)
    metrics = run.metrics
    assert (metrics.injected, metrics.completed, metrics.aborted, metrics.aborted_waiting) == (2, 1, 1, 0)
    assert metrics.wasted_output_tokens == failed.output_tokens
    assert metrics.wasted_prompt_tokens > 0
    assert metrics.unserved == 0
    assert not metrics.failures


def test_patience_ends_with_the_first_token_and_not_before(run_fleet, small_fleet, chat) -> None:
    patient = replace(chat("a", output=40), patience_ms=50.0)
    assert run_fleet(small_fleet(), [patient]).metrics.completed == 1
    run = run_fleet(small_fleet(), [replace(patient, patience_ms=1.0)])
    (failed,) = run.of(RequestFailed)
    assert (failed.aborted, failed.output_tokens) == (True, 0)
    assert not run.of(FirstToken)
    assert (run.metrics.aborted_waiting, run.metrics.unserved) == (1, 1)


@pytest.mark.parametrize("topology", ["aggregated", "p+d", "e+pd", "e+p+d"])
@pytest.mark.parametrize("leaves_ms", [0.5, 1.5, 4.0, 9.0, 12.0, 15.0, 20.0, 40.0])
def test_wherever_it_leaves_it_ends_once_and_nothing_is_computed_for_it_any_more(
    run_fleet, small_fleet, chat, topology, leaves_ms
) -> None:
    leaves = replace(chat("leaves", images=["sun", "moon"], output=60), leaves_ms=leaves_ms)
    stays = chat("stays", images=["sun"], output=60)
    run = run_fleet(small_fleet(topology), [leaves, stays])
    assert ends(run) == {"leaves": 1, "stays": 1}
    (failed,) = run.of(RequestFailed)
    assert failed.aborted
    assert run.metrics.completed == 1
    after = [one for one in run.of(StepPlanned) if one.time_ms > failed.time_ms]
    assert not any("leaves" in one.num_scheduled_tokens for one in after)


def test_who_has_all_tokens_when_it_leaves_is_served(run_fleet, small_fleet, chat) -> None:
    alone = run_fleet(small_fleet(), [chat("a", output=10)])
    (end,) = alone.of(RequestFinished)
    run = run_fleet(small_fleet(), [replace(chat("a", output=10), leaves_ms=end.time_ms - 1)])
    assert ends(run) == {"a": 1}
    assert run.metrics.completed == 1, "its last step was under way"
    run = run_fleet(small_fleet(), [replace(chat("a", output=10), leaves_ms=end.time_ms + 1)])
    assert run.metrics.completed == 1


def test_one_that_has_left_is_not_sent_again_when_its_engine_is_lost(run_fleet, small_fleet, chat) -> None:
    faults = Faults([Loss("engine-0", 60.5, 200.0)], max_retries=2, detect_ms=20)
    leaves = replace(chat("a", output=60), leaves_ms=60.3)
    run = run_fleet(small_fleet(faults=faults), [leaves])
    assert ends(run) == {"a": 1}
    (failed,) = run.of(RequestFailed)
    assert failed.aborted
    assert run.metrics.retries == 0
    assert not run.of(RequestAborted), "the engine was lost before it came to it"
