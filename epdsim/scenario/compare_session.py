"""What `epdsim compare` does: run both sides on the same seeds, print the differences, name the regressions."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.metrics import RunMetrics
from epdsim.report.table import console, print_table
from epdsim.scenario.comparison import (
    CONFIDENCE,
    DEFAULT_FIGURES,
    Difference,
    change_told,
    check_installed,
    common_points,
    differences,
    missing,
)
from epdsim.scenario.jobs import Job
from epdsim.scenario.judged import summary, violations
from epdsim.scenario.loader import load_scenario
from epdsim.scenario.points import Point, check_metric, described
from epdsim.scenario.progress import SweepProgress
from epdsim.scenario.session import print_judged
from epdsim.scenario.sweep import Sweep


@record
class Side:
    """A scenario file and what the command line changes in it.

    Attributes:
        path: The file.
        overrides: Settings, the later ones on top.
        option: What they stand behind, for errors.
    """

    path: Path
    overrides: tuple[str, ...]
    option: str

    def jobs(self, points: Sequence[Point], seeds: range, *, is_judged: bool) -> list[Job]:
        """Every seed of every point."""
        return [Job(self.path, self.overrides, point, seed, is_judged=is_judged) for point in points for seed in seeds]


def run_compare(
    base: Side,
    head: Side,
    *,
    seeds: range,
    figures: Sequence[str],
    tolerated_percent: float,
    sweep: Sweep,
    as_json: bool,
) -> bool:
    """Compare two sides; whether no figure is a regression, and no run breaks a property that it is judged by.

    Raises:
        InputError: A file or a figure cannot be used, or both sides are the same.
    """
    if (base.path, base.overrides) == (head.path, head.overrides):
        raise InputError(
            f"{base.path}", "base and head are the same", "name another file, or settings with --base or --head"
        )
    if len(seeds) > 1:
        check_installed()
    for side in (base, head):
        if any(override.partition("=")[0] == "seed" for override in side.overrides):
            raise InputError(f"{side.option} seed=...", "both sides run on the same seeds", "choose them with --seeds")
    chosen = tuple(dict.fromkeys(figures)) or DEFAULT_FIGURES
    for name in chosen:
        check_metric(name)
    points = common_points(*(load_scenario(side.path, side.overrides, side.option) for side in (base, head)))
    with SweepProgress() as progress, sweep.started(progress) as run_jobs:
        jobs = [job for side in (base, head) for job in side.jobs(points, seeds, is_judged=sweep.is_judged)]
        done = [result.run for result in run_jobs(jobs) if result.run is not None]
    middle, count = len(done) // 2, len(seeds)
    sides = [_by_point([run.metrics for run in half], count) for half in (done[:middle], done[middle:])]
    found, absent = differences(points, chosen, *sides), _absent(points, chosen, *sides)
    broken = [*violations(done[:middle], "base"), *violations(done[middle:], "head")]
    worse = [one for one in found if one.is_regression(tolerated_percent)]
    if as_json:
        rows = [_as_data(one) | {"is_regression": one in worse} for one in found]
        body = {"seeds": len(seeds), "tolerated_percent": tolerated_percent, "differences": rows, "absent": absent}
        body["violated"] = [one.sentence for one in broken]
        sys.stdout.write(json.dumps(body, indent=2, sort_keys=True) + "\n")
    else:
        _print(found, worse, seeds, tolerated_percent)
        for line in absent:
            console().print(f"FAILS  {line}")
        print_judged(summary(done), broken)
    return not worse and not absent and not broken


def _absent(
    points: Sequence[Point],
    figures: Sequence[str],
    base: Sequence[Sequence[RunMetrics]],
    head: Sequence[Sequence[RunMetrics]],
) -> list[str]:
    """Figures that the head has lost, or that neither side has though they were asked for, in words."""
    told: list[str] = []
    for point, before, after in zip(points, base, head, strict=True):
        for figure in figures:
            reason, on_base = missing(figure, after), missing(figure, before)
            if reason and (not on_base or figures is not DEFAULT_FIGURES):
                told.append(f"head{' at ' + described(point) if point else ''}: {reason}")
    return told


def _as_data(one: Difference) -> dict[str, object]:
    """For programs; the ends of an interval that there is not are null."""
    ends = {} if one.has_interval else {"low_percent": None, "high_percent": None}
    return {**dataclasses.asdict(one), **ends}


def _by_point(metrics: Sequence[RunMetrics], num_seeds: int) -> list[Sequence[RunMetrics]]:
    return [metrics[start : start + num_seeds] for start in range(0, len(metrics), num_seeds)]


def _print(found: Sequence[Difference], worse: Sequence[Difference], seeds: range, tolerated_percent: float) -> None:
    without = "one seed" if len(seeds) == 1 else "the same with every seed"
    rows = [
        [
            described(one.point),
            one.figure,
            f"{one.base:,.4g}",
            f"{one.head:,.4g}",
            change_told(one.change_percent),
            change_told(one.low_percent, one.high_percent) if one.has_interval else without,
            "REGRESSION" if one in worse else "",
        ]
        for one in found
    ]
    interval = f"{100 * CONFIDENCE:.0f} % interval"
    print_table(
        f"head against base over {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}",
        ["at", "figure", "base", "head", "change", interval, ""],
        rows,
    )
    out, alike = console(), [one for one in found if not one.has_interval]
    if alike and len(seeds) > 1:
        out.print(
            f"the seeds change nothing{_where(alike, found)}: there is no interval, and one run of each side decides"
        )
    for one in worse:
        certain = "" if one.has_interval else " in one run of each side"
        out.print(f"FAILS  {one}, worse by more than {tolerated_percent:g} %{certain}")
    if not worse:
        certain = " or ".join(
            [*["for certain"] * (len(alike) < len(found)), *["in one run of each side"] * bool(alike)]
        )
        out.print(f"holds  no figure is worse by more than {tolerated_percent:g} % {certain}")


def _where(some: Sequence[Difference], found: Sequence[Difference]) -> str:
    """The points of some differences, in words; empty where there are no others."""
    places = dict.fromkeys(described(one.point) for one in some)
    return "" if len(some) == len(found) else f" at {'; '.join(places)}"
