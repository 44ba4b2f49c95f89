"""What `epdsim plan` does: search for every point of a scenario, print the answers and the reasons."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from epdsim.core.errors import InputError
from epdsim.core.files import check_apart, check_place
from epdsim.core.records import record
from epdsim.report.figures import check_installed
from epdsim.report.html import write_html
from epdsim.report.table import console, print_text
from epdsim.scenario.jobs import Job, RunJobs
from epdsim.scenario.judged import summary
from epdsim.scenario.loader import Scenario, files_named, load_scenario
from epdsim.scenario.plan_curves import surroundings, surroundings_tables
from epdsim.scenario.plan_page import plan_report
from epdsim.scenario.plan_tables import Answer, answer_table, as_data, assumptions, sentences, sizes
from epdsim.scenario.planning import Planner, Trial, check_plan, plan_of, pools_at
from epdsim.scenario.points import described
from epdsim.scenario.ranks import priced_otherwise
from epdsim.scenario.runner import build_point
from epdsim.scenario.session import print_judged
from epdsim.scenario.slo import decided_by_few
from epdsim.scenario.stretch import survey
from epdsim.scenario.sweep import Sweep


@record
class Wanted:
    """What is to be run beside the search.

    Attributes:
        check: The answer under the settings of `plan.check`.
        curves: It and the fleets next to it under other loads, and under the settings of `plan.what_if`.
        picture: The answer once more, for a page.
        exhaustive: Every fleet that is cheaper than the answer.
    """

    check: bool = False
    curves: bool = False
    picture: bool = False
    exhaustive: bool = False


def run_plan(
    path: Path,
    overrides: Sequence[str],
    *,
    sweep: Sweep,
    seed: int | None,
    html: Path | None,
    wants: Wanted,
    as_json: bool,
) -> bool:
    """Plan a scenario file; whether every check that was asked for holds, and every property that runs were judged by.

    Raises:
        InputError: The file cannot be used, or no fleet within its bounds meets its service level.
    """
    if html is not None:
        check_place(html, str(html))
        check_installed()
    scenario = load_scenario(path, overrides)
    if html is not None:
        check_apart({"--html": html}, [path, *files_named(scenario.file.data, scenario.folder)])
    check_plan(scenario, overrides)
    chosen = scenario.spec.seed if seed is None else seed
    job = Job(path, tuple(overrides), {}, chosen, slo=scenario.spec.slo, is_judged=sweep.is_judged)
    with sweep.started() as run_jobs:
        answers = [
            _answer(scenario, replace(job, point=point), run_jobs, replace(wants, picture=html is not None))
            for point in scenario.points
        ]
    if html is not None:
        write_html(html, plan_report(scenario, chosen, answers))
    if as_json:
        sys.stdout.write(json.dumps([as_data(one) for one in answers], indent=2, sort_keys=True) + "\n")
    else:
        _print(scenario, answers)
    return all((one.check is None or not one.check.missed) and not one.violations for one in answers)


def _answer(scenario: Scenario, job: Job, run_jobs: RunJobs, wants: Wanted) -> Answer:
    spec, point = plan_of(scenario), job.point
    built = build_point(scenario, point, job.seed)
    traffic = survey(built.workload, spec.stretch_s)
    if wants.curves and not traffic.is_by_clock:
        raise InputError("--curves", "a closed loop has no offered load to change", "leave it out")
    pools, left_out = pools_at(scenario, point)
    counted = replace(job, num_requests=traffic.num_requests)
    with _Progress(described(point)) as progress:
        search = Planner(pools, counted, run_jobs, progress, traffic.stretch_s, is_exhaustive=wants.exhaustive)
        plan = search.search()
    fleet = dict(zip(plan.pools, plan.answer.fleet, strict=True))
    check = drawn = around = None
    if wants.check:
        (check,) = run_jobs([replace(job, constants={**spec.check, **fleet})])
    if wants.picture:
        picture = replace(job, constants=fleet, slo={}, stretch_s=traffic.stretch_s, wants_picture=True)
        drawn = run_jobs([picture])[0].run
    if wants.curves:
        around = surroundings(plan, pools, spec.what_if, job, traffic, run_jobs)
    metrics = plan.answer.result.metrics
    assert metrics is not None, "a fleet that meets the level is run to its end"
    few = decided_by_few(metrics, job.slo)
    assumed = (*built.assumptions, *priced_otherwise(scenario.at(point), pools), *few)
    return Answer(point, plan, check, traffic, left_out, drawn, around, assumed)


class _Progress:
    """One line on stderr: how many fleets were tried, and how the last one did; silent where stderr is no terminal."""

    def __init__(self, told: str) -> None:
        self._status = Console(stderr=True).status("")
        self._told = f"{told}: " if told else ""
        self._tried = 0
        self._started_s = time.monotonic()

    def __call__(self, trial: Trial) -> None:
        """A fleet was tried."""
        self._tried += 1
        fate = ("meets" if trial.is_whole else "may meet") if trial.meets else "misses"
        rate = self._tried / (time.monotonic() - self._started_s)
        line = f"{self._told}{self._tried} fleets tried ({rate:.2g} a second), the last, {sizes(trial)}, {fate}"
        self._status.update(Text(line))

    def __enter__(self) -> _Progress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()


def _print(scenario: Scenario, answers: Sequence[Answer]) -> None:
    spec, out = scenario.spec, console()
    out.print(f"{spec.name}: {spec.title}" if spec.title else spec.name, style="bold")
    for line in assumptions(scenario, answers):
        out.print(f"assumed: {line}")
    for one in answers:
        print_text(answer_table(one, spec.slo))
        for line in sentences(one, spec.slo):
            out.print(line)
        for table in surroundings_tables(one.around, "") if one.around else ():
            print_text(table)
        print_judged(summary(one.runs), one.violations)
