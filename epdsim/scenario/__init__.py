"""Scenario files: schema, loader, runner, claims."""

from typing import TYPE_CHECKING

from epdsim.core.lazy import names_in

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

if TYPE_CHECKING:
    from epdsim.scenario.claims import Comparison, Verdict, compare, judge
    from epdsim.scenario.loader import Scenario, load_scenario
    from epdsim.scenario.runner import RunResult, run_point
    from epdsim.scenario.study import ScenarioResult, run_scenario
else:
    __getattr__, __dir__ = names_in(__name__, ("loader", "runner", "study", "claims"), __all__)
