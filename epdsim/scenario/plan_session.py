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

from epdsim.core.files import check_apart, check_place
from epdsim.report.figures import check_installed
from epdsim.report.html import write_html
from epdsim.report.table import console, print_text
from epdsim.scenario.loader import Scenario, files_named, load_scenario
from epdsim.scenario.plan_tables import Answer, answer_table, as_data, assumptions, plan_report, sentences, sizes
from epdsim.scenario.planning import Planner, RunJobs, Trial, check_plan, plan_of, pools_at
from epdsim.scenario.points import Point, described
from epdsim.scenario.runner import build_point
from epdsim.scenario.store import ResultStore
from epdsim.scenario.stretch import survey
from epdsim.scenario.sweep import Job, workers


def run_plan(
    path: Path,
    overrides: Sequence[str],
    *,
    seed: int | None,
    processes: int | None,
    store: Path | None,
    html: Path | None,
    wants_check: bool,
    as_json: bool,
) -> bool:
    """Plan a scenario file; whether every check that was asked for holds.

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
    kept = None if store is None else ResultStore(store)
    with workers(processes, kept) as run_jobs:
        answers = [
            _answer(scenario, overrides, point, chosen, run_jobs, wants_check=wants_check) for point in scenario.points
        ]
    if html is not None:
        write_html(html, plan_report(scenario, chosen, answers))
    if as_json:
        sys.stdout.write(json.dumps([as_data(one) for one in answers], indent=2, sort_keys=True) + "\n")
    else:
        _print(scenario, answers)
    return all(one.check is None or not one.check.missed for one in answers)


def _answer(
    scenario: Scenario,
    overrides: Sequence[str],
    point: Point,
    seed: int,
    run_jobs: RunJobs,
    *,
    wants_check: bool,
) -> Answer:
    wanted, spec = plan_of(scenario), scenario.spec
    traffic = survey(build_point(scenario, point, seed).workload, wanted.stretch_s)
    job = Job(scenario.file.path, tuple(overrides), point, seed, slo=spec.slo, num_requests=traffic.num_requests)
    pools, left_out = pools_at(scenario, point)
    with _Progress(described(point)) as progress:
        plan = Planner(pools, job, run_jobs, progress, traffic.stretch_s).search()
    check = None
    if wants_check:
        fleet = dict(zip(plan.pools, plan.answer.fleet, strict=True))
        (check,) = run_jobs([replace(job, constants={**wanted.check, **fleet}, num_requests=0)])
    return Answer(point, plan, check, traffic, left_out)


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
