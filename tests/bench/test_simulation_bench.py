"""Simulated requests per second, beside a bare SimPy loop of as many waits in the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
import simpy

from epdsim.fleet import simulate
from epdsim.report.sink import MetricsSink
from epdsim.scenario import load_scenario
from epdsim.scenario.runner import build_point

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "capacity"
REQUESTS = 1000

pytestmark = pytest.mark.bench


def test_text_requests(benchmark) -> None:
    """The workload on which peers are compared: 512 tokens in, 128 out, 20 a second over four engines."""
    scenario = load_scenario(SCENARIOS / "text-baseline.yaml", [f"workload.num_requests={REQUESTS}"])
    built = build_point(scenario, {}, 0)
    metrics = MetricsSink()

    def run() -> None:
        nonlocal metrics
        metrics = MetricsSink()
        simulate(built.fleet, built.family, built.workload, [metrics])

    benchmark(run)
    result = metrics.result()
    assert result.completed == REQUESTS
    benchmark.extra_info["requests_per_s"] = REQUESTS / benchmark.stats.stats.median
    benchmark.extra_info["steps_per_s"] = result.steps / benchmark.stats.stats.median
    benchmark.extra_info["times_a_bare_loop"] = benchmark.stats.stats.median / _bare_loop_s(result.steps)


def _bare_loop_s(steps: int) -> float:
    """Seconds of a SimPy process that waits as often as the run had steps: the price of an event loop that decides nothing."""
    from time import perf_counter

    env = simpy.Environment()

    def wait() -> object:
        for _ in range(steps):
            yield env.timeout(1.0)

    env.process(wait())
    start = perf_counter()
    env.run()
    return perf_counter() - start
