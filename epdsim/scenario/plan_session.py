"""What `epdsim plan` does: search for every point of a scenario, print the answers and the reasons."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from epdsim.report.table import console, print_table
from epdsim.scenario.loader import Scenario, load_scenario
from epdsim.scenario.planning import (
    Plan,
    Planner,
    RunJobs,
    Trial,
    binding_pool,
    check_plan,
    plan_of,
    pool_utilisation,
    pools_at,
)
from epdsim.scenario.points import Point, described, metric
from epdsim.scenario.runner import build_point
from epdsim.scenario.store import JobResult, ResultStore
from epdsim.scenario.stretch import Traffic, survey
from epdsim.scenario.sweep import Job, workers

ASSUMED = "what one fleet misses, no fleet with fewer instances in one pool and as many in the others meets"
ASSUMED_OF_STRETCH = "a fleet with more late requests in the busiest stretch than the level allows among all misses it"


@dataclass(frozen=True, slots=True)
class Answer:
    """One point, planned.

    Attributes:
        point: Its axis values.
        plan: The search.
        check: The answer under the settings of `plan.check`; None where it was not asked for.
        traffic: What was planned for.
        left_out: Pools of the plan that the point's topology has not.
    """

    point: Point
    plan: Plan
    check: JobResult | None
    traffic: Traffic
    left_out: tuple[str, ...] = ()


def run_plan(
    path: Path,
    overrides: Sequence[str],
    *,
    seed: int | None,
    processes: int | None,
    store: Path | None,
    wants_check: bool,
    as_json: bool,
) -> bool:
    """Plan a scenario file; whether every check that was asked for holds.

    Raises:
        InputError: The file cannot be used, or no fleet within its bounds meets its service level.
    """
    scenario = load_scenario(path, overrides)
    check_plan(scenario, overrides)
    chosen = scenario.spec.seed if seed is None else seed
    kept = None if store is None else ResultStore(store)
    with workers(processes, kept) as run_jobs:
        answers = [
            _answer(scenario, overrides, point, chosen, run_jobs, wants_check=wants_check) for point in scenario.points
        ]
    if as_json:
        sys.stdout.write(json.dumps([_as_data(one) for one in answers], indent=2, sort_keys=True) + "\n")
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
        line = f"{self._told}{self._tried} fleets tried ({rate:.2g} a second), the last, {_sizes(trial)}, {fate}"
        self._status.update(Text(line))

    def __enter__(self) -> _Progress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()


def _sizes(trial: Trial) -> str:
    return " + ".join(map(str, trial.fleet))


def _print(scenario: Scenario, answers: Sequence[Answer]) -> None:
    spec, out = scenario.spec, console()
    out.print(f"{spec.name}: {spec.title}" if spec.title else spec.name, style="bold")
    has_stretch = any(one.traffic.stretch_s for one in answers)
    for line in (*spec.assumptions, ASSUMED, *([ASSUMED_OF_STRETCH] if has_stretch else [])):
        out.print(f"assumed: {line}")
    for one in answers:
        _print_answer(one, spec.slo)


def _print_answer(one: Answer, slo: Mapping[str, float]) -> None:
    plan, told = one.plan, described(one.point)
    title = f"{told}: the smallest fleet" if told else "the smallest fleet"
    pools = [pool.removeprefix("fleet.").removesuffix(".count") for pool in plan.pools]
    shown = [("answer", plan.answer), *(("one less", trial) for trial in plan.neighbours)]
    rows = [
        [name, *map(str, trial.fleet), f"{trial.cost:g}", *_levels(trial.result, slo), _fate(trial.result)]
        for name, trial in shown
    ]
    print_table(
        title, ["fleet", *pools, "GPUs", *(f"{name} (most {bound:g})" for name, bound in slo.items()), "level"], rows
    )
    out = console()
    if one.left_out:
        out.print(f"left out, for the topology has no such pool: {', '.join(one.left_out)}")
    busy = pool_utilisation(plan.answer.result)
    out.print(
        "busiest instance of each pool: " + ", ".join(f"{pool} {100 * share:.0f} %" for pool, share in busy.items())
    )
    out.print(f"what binds: {binding_pool(plan) or 'nothing was measured'}; {_searched(one)}")
    if one.check is not None:
        out.print(f"check: {_fate(one.check)}; " + ", ".join(_levels(one.check, slo)))


def _searched(one: Answer) -> str:
    """What was run on what."""
    trials, traffic = one.plan.trials, one.traffic
    whole = sum(trial.is_whole for trial in trials)
    if traffic.stretch_s is None:
        return f"{whole} fleets were simulated on all {traffic.num_requests:,} requests"
    start_s, end_s = traffic.stretch_s
    part = f"{traffic.in_stretch:,} of {traffic.num_requests:,} requests"
    return (
        f"{len(trials) - whole} fleets were simulated on the busiest {end_s - start_s:g} s (from {start_s:g} s on, {part}), "
        f"{whole} on all of it, the answer and its neighbours among them"
    )


def _levels(result: JobResult, slo: Mapping[str, float]) -> list[str]:
    if result.metrics is None:
        return ["given up" for _ in slo]
    return [f"{metric(result.metrics, name):,.1f}" for name in slo]


def _fate(result: JobResult) -> str:
    return "misses: " + "; ".join(map(str, result.missed)) if result.missed else "meets"


def _as_data(one: Answer) -> dict[str, object]:
    def trial(tried: Trial) -> dict[str, object]:
        figures = dataclasses.asdict(tried.result.metrics) if tried.result.metrics else None
        return {
            "fleet": dict(zip(one.plan.pools, tried.fleet, strict=True)),
            "gpus": tried.cost,
            "meets": tried.meets,
            "on": "all requests" if tried.is_whole else "the busiest stretch",
            "missed": [str(bound) for bound in tried.result.missed],
            "metrics": figures,
        }

    return {
        "at": one.point,
        "left_out": one.left_out,
        "assumed": [ASSUMED, *([ASSUMED_OF_STRETCH] if one.traffic.stretch_s else [])],
        "traffic": dataclasses.asdict(one.traffic),
        "answer": trial(one.plan.answer),
        "neighbours": [trial(tried) for tried in one.plan.neighbours],
        "trials": [
            {key: value for key, value in trial(tried).items() if key != "metrics"} for tried in one.plan.trials
        ],
        "utilisation": pool_utilisation(one.plan.answer.result),
        "binds": binding_pool(one.plan),
        "check": one.check and {"meets": not one.check.missed, "missed": [str(bound) for bound in one.check.missed]},
    }
