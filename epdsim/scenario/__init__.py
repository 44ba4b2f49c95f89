"""Scenario files: schema, loader, runner, claims."""

from epdsim.scenario.claims import Comparison, Verdict, compare, judge
from epdsim.scenario.loader import Scenario, load_scenario
from epdsim.scenario.runner import RunResult, run_point
from epdsim.scenario.study import ScenarioResult, run_scenario

__all__ = [
    "Comparison",
    "RunResult",
    "Scenario",
    "ScenarioResult",
    "Verdict",
    "compare",
    "judge",
    "load_scenario",
    "run_point",
    "run_scenario",
]
