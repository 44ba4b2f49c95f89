"""What `epdsim validate` does: every scenario of a folder, published figures beside simulated ones, claims judged."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.table import console, print_table, print_text
from epdsim.scenario.claims import Comparison, Verdict, compare, judge
from epdsim.scenario.expected import check_figures
from epdsim.scenario.judged import summary, violations
from epdsim.scenario.loader import load_scenario
from epdsim.scenario.progress import SweepProgress
from epdsim.scenario.session import print_judged, print_verdicts
from epdsim.scenario.study import ScenarioResult, run_scenario
from epdsim.scenario.sweep import Sweep
from epdsim.scenario.tables import comparison_tables

DEFAULT_FOLDER = Path("scenarios/validation")


@record
class Validation:
    """One scenario against what was published.

    Attributes:
        result: Its runs.
        comparisons: Every published figure beside the simulated one.
        verdicts: Its claims.
    """

    result: ScenarioResult
    comparisons: tuple[Comparison, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def predicted(self) -> tuple[Comparison, ...]:
        """Points that no constant was fitted on, and that are none themselves."""
        return tuple(row for row in self.comparisons if row.role == "predicted")

    @property
    def holds(self) -> bool:
        """Whether every claim holds, and every property that a run was judged by."""
        return all(verdict.holds for verdict in self.verdicts) and not violations(self.result.runs)


def scenario_files(places: Sequence[Path]) -> list[Path]:
    """The files that places name: a file itself, of a folder every `.yaml` in order of name.

    Raises:
        InputError: There is no such place, or no scenario in a folder.
    """
    found: list[Path] = []
    for place in places:
        files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
        if not files:
            raise InputError(str(place), "there is no .yaml file in it", "name a folder of scenarios, or files")
        found += files
    return found


def run_validation(places: Sequence[Path], sweep: Sweep, *, as_json: bool) -> bool:
    """Run and print every scenario that the places name; whether all claims and properties of all of them hold.

    All files are loaded, and all points built, before the first of them runs.

    Raises:
        InputError: A file cannot be used.
    """
    scenarios = [load_scenario(path) for path in scenario_files(places)]
    for scenario in scenarios:
        check_figures(scenario, scenario.spec.seed)
    done: list[Validation] = []
    with SweepProgress() as progress, sweep.started(progress) as run_jobs:
        for scenario in scenarios:
            result = run_scenario(scenario, run_jobs=run_jobs, is_judged=sweep.is_judged)
            done.append(Validation(result, compare(result), judge(result)))
            if not as_json:
                _print(done[-1])
    if as_json:
        sys.stdout.write(json.dumps([_as_data(one) for one in done], indent=2, sort_keys=True) + "\n")
    else:
        columns = ["scenario", "fitted or given", "predicted", "median deviation", "worst deviation", "claims held"]
        print_table("published against simulated", columns, [_summary(one) for one in done])
    return all(one.holds for one in done)


def _as_data(one: Validation) -> dict[str, object]:
    return {
        "scenario": one.result.scenario.spec.name,
        "published": [
            dataclasses.asdict(row) | {"deviation_percent": row.deviation_percent} for row in one.comparisons
        ],
        "claims": [dataclasses.asdict(verdict) for verdict in one.verdicts],
        "violated": [violation.sentence for violation in violations(one.result.runs)],
    }


def _print(one: Validation) -> None:
    spec, out = one.result.scenario.spec, console()
    out.print(f"{spec.name}: {spec.title}" if spec.title else spec.name, style="bold")
    if spec.source:
        out.print(f"source: {spec.source}")
    for line in spec.assumptions:
        out.print(f"assumed: {line}")
    for table in comparison_tables(one.comparisons, one.result):
        print_text(table)
    print_judged(summary(one.result.runs), violations(one.result.runs))
    print_verdicts(one.verdicts)
    out.print()


def _summary(one: Validation) -> list[str]:
    """Deviations are those of predicted points: a fitted one proves nothing."""
    sizes = [abs(row.deviation_percent) for row in one.predicted]
    held = sum(verdict.holds for verdict in one.verdicts)
    return [
        one.result.scenario.spec.name,
        str(len(one.comparisons) - len(one.predicted)),
        str(len(one.predicted)),
        f"{median(sizes):.1f} %" if sizes else "none",
        f"{max(sizes):.1f} %" if sizes else "none",
        f"{held} of {len(one.verdicts)}",
    ]
