"""Steps per second of the model beside the real scheduler, on the same recorded workloads in one run, as a ratio."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import pytest

from epdsim.core.plan import TransferReport
from epdsim.sut.live import live_system
from epdsim.sut.schedule_model import model_play
from epdsim.sut.schedule_play import Play, Tokens
from epdsim.sut.schedule_records import RecordedWorkload, read_schedules

RECORDED = Path(__file__).parents[1] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"
ROUNDS = 5
AT_LEAST = 3.0
"""The aim that the project has set itself."""

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
    ),
]


class _Timed:
    """An engine on a stopwatch that runs while it plans and while it hears what a step yielded.

    Requests are built outside of it. That is to the real scheduler's advantage, which hashes a prompt's blocks when a request is
    built, where the model does so when it plans.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.add, self.abort, self.reset, self.propose = engine.add, engine.abort, engine.reset, engine.propose
        self.transfers = engine.transfers
        self.spent_s = 0.0

    def schedule(self) -> Any:
        start = process_time()
        plan = self._engine.schedule()
        self.spent_s += process_time() - start
        return plan

    def update(self, plan: Any, tokens: Tokens, kv_report: TransferReport | None) -> None:
        start = process_time()
        self._engine.update(plan, tokens, kv_report)
        self.spent_s += process_time() - start


def _seconds(make_play: Callable[[RecordedWorkload], Play], workload: RecordedWorkload) -> float:
    """CPU time of the steps of a workload."""
    play = make_play(workload)
    play.engine = timed = _Timed(play.engine)
    for number, step in enumerate(workload.steps):
        play.advance(number, step["sampled"], step.get("num_draft_tokens", {}))
    return timed.spent_s


def test_the_model_is_faster_than_what_it_models(record_property: Callable[[str, object], None]) -> None:
    workloads = [workload for _, workload in read_schedules(RECORDED)]
    num_steps = sum(len(workload.steps) for workload in workloads)
    vllm = live_system("vllm")
    ours, theirs = [], []
    for _ in range(ROUNDS):
        spent = [0.0, 0.0]
        for workload in workloads:  # in turn, so that a busy host slows both
            spent[0] += _seconds(model_play, workload)
            spent[1] += _seconds(vllm.play, workload)
        ours.append(spent[0])
        theirs.append(spent[1])
    ratio = median(their / our for our, their in zip(ours, theirs, strict=True))
    record_property("model_steps_per_s", num_steps / median(ours))
    record_property("vllm_steps_per_s", num_steps / median(theirs))
    record_property("ratio", ratio)
    record_property("rounds", [round(their / our, 2) for our, their in zip(ours, theirs, strict=True)])
    assert ratio >= AT_LEAST
