"""Steps per second of the bare scheduler: recorded workloads, a full batch of decodes, and long prompts."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.sut.schedule_model import model_play
from epdsim.sut.schedule_records import read_schedules

pytestmark = pytest.mark.bench

RECORDED = Path(__file__).parents[1] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"


def test_recorded_workloads(benchmark) -> None:
    """Small steps with media, preemption and hits."""
    workloads = [workload for _, workload in read_schedules(RECORDED)]
    num_steps = sum(len(workload.steps) for workload in workloads)

    def replay() -> None:
        for workload in workloads:
            play = model_play(workload)
            for number, step in enumerate(workload.steps):
                play.advance(number, step["sampled"], step.get("num_draft_tokens", {}))

    benchmark(replay)
    benchmark.extra_info["steps_per_s"] = num_steps / benchmark.stats["min"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_full_batch_of_decodes(benchmark, is_async: bool) -> None:
    """256 requests that decode 300 tokens each, step by step."""
    num_requests, max_tokens = 256, 300

    def decode() -> int:
        engine = Scheduler(SchedulerConfig(num_gpu_blocks=60_000, async_scheduling=is_async))
        for number in range(num_requests):
            prompt = RunPrompt([TokenRun("system", 0, 500), TokenRun(number, 0, 500)])
            engine.add_request(Request(f"r{number}", prompt, max_tokens))
        under_way, num_steps = deque(), 0
        while engine.has_unfinished:
            under_way.append(engine.schedule())
            num_steps += 1
            if len(under_way) > is_async:
                engine.update_from_output(under_way.popleft())
        return num_steps

    num_steps = benchmark(decode)
    benchmark.extra_info["steps_per_s"] = num_steps / benchmark.stats["min"]
    benchmark.extra_info["us_per_token"] = 1e6 * benchmark.stats["min"] / (num_requests * max_tokens)


def test_long_prompts(benchmark) -> None:
    """60 prompts of 100,000 tokens, half of each known from the one before."""
    length, num_requests = 100_000, 60

    def prefill() -> None:
        engine = Scheduler(SchedulerConfig(num_gpu_blocks=40_000, max_model_len=2 * length))
        for number in range(num_requests):
            prompt = RunPrompt([TokenRun("system", 0, length // 2), TokenRun(number, 0, length // 2)])
            engine.add_request(Request(f"r{number}", prompt, 4))
        while engine.has_unfinished:
            engine.update_from_output(engine.schedule())

    benchmark(prefill)
    benchmark.extra_info["us_per_block"] = 1e6 * benchmark.stats["min"] / (num_requests * length / 16)
