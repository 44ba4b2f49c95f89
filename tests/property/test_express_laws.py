"""FWD-EQ of runs in counts: their figures are, to the bit, those of the same fleet as processes, steps and plans."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from simulator_laws import built

from epdsim.fleet import simulate
from epdsim.fleet.express import run_express
from epdsim.report.metrics import MetricsSink, RunMetrics
from epdsim.testing.scenario_files import text_files

LOOPS = st.sampled_from(
    [{}, {}, {"concurrency": 1}, {"concurrency": 7}, {"concurrency": 7, "keeps_arrivals": True}]
)


def figures(told, loop):
    """Of both ways; None for the fast one where it declines."""
    point, sink = built(told), MetricsSink()
    simulate(point.fleet, point.family, point.workload, [sink], **loop)
    counts = run_express(point.fleet, point.workload, **loop)
    return None if counts is None else asdict(RunMetrics.of_counts(counts)), asdict(sink.result())


@pytest.mark.engine_law
@settings(max_examples=60)
@given(text_files(), LOOPS)
def test_figures_are_those_of_processes_steps_and_plans(told, loop) -> None:
    counted, simulated = figures(told, loop)
    if counted is None:
        event("declined")
        assert simulated["preemptions"] or simulated["refused"] or simulated["unfinished"] or simulated["failed"]
    else:
        event("closed loop" if loop else "open loop")
        assert counted == simulated
