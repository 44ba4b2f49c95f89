"""Around the answer of a plan: it and the fleets next to it under more and less load, and what is uncertain set otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.figures import DrawnCurve
from epdsim.report.table import TextTable
from epdsim.scenario.jobs import Job, JobResult, RunJobs
from epdsim.scenario.planning import Fleet, Plan, fleet_name, fleets_around
from epdsim.scenario.points import metric
from epdsim.scenario.search_schema import PoolBounds
from epdsim.scenario.slo import missed
from epdsim.scenario.stretch import Traffic

LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""In units of the traffic that was planned for."""


@record
class LoadPoint:
    """A fleet under some load.

    Attributes:
        load: In units of the traffic.
        offered_req_s: Requests that arrive.
        good_req_s: Those of them that are served within the bounds: offered rate times their share.
        worst: The worst figure against its bound; None where a figure is missing.
        meets: Whether the service level is met.
    """

    load: float
    offered_req_s: float
    good_req_s: float
    worst: float | None
    meets: bool


@record
class Curve:
    """A fleet over all loads.

    Attributes:
        fleet: Its instances by pool.
        gpus: What it costs.
        told: The answer, or how it differs from it.
        points: By load.
    """

    fleet: Fleet
    gpus: float
    told: str
    points: tuple[LoadPoint, ...]

    @property
    def name(self) -> str:
        """Its instances, pool by pool."""
        return fleet_name(self.fleet)

    @property
    def most(self) -> LoadPoint | None:
        """The highest load up to which the level is met; None where the lowest misses it."""
        met = None
        for point in self.points:
            if not point.meets:
                break
            met = point
        return met


@record
class Surroundings:
    """What lies around an answer.

    Attributes:
        curves: Of the answer, and of each fleet with one instance less or more in one pool.
        what_if: By the name in the file: the answer under those settings, its figures beside the bounds, whether it meets.
    """

    curves: tuple[Curve, ...]
    what_if: Mapping[str, LoadPoint]

    @property
    def as_planned(self) -> list[tuple[Fleet, bool]]:
        """Each fleet under the traffic as it is, and whether it meets."""
        return [(one.fleet, point.meets) for one in self.curves for point in one.points if point.load == 1.0]


def surroundings(
    plan: Plan,
    pools: Mapping[str, PoolBounds],
    what_if: Mapping[str, Mapping[str, float]],
    job: Job,
    traffic: Traffic,
    run_jobs: RunJobs,
) -> Surroundings:
    """Run them all, on the busiest stretch where there is one; each to its end. Requests are to arrive by the clock."""
    whole = replace(job, num_requests=0, stretch_s=traffic.stretch_s, is_judged=False)
    fleets = fleets_around(plan, pools)

    def of(fleet: Fleet, load: float, more: Mapping[str, float]) -> Job:
        return replace(whole, constants={**dict(zip(plan.pools, fleet, strict=True)), **more}, load=load)

    jobs = [of(fleet, load, {}) for fleet in fleets for load in LOADS]
    done = run_jobs([*jobs, *(of(plan.answer.fleet, 1.0, settings) for settings in what_if.values())])
    points = [_point(one, result, traffic) for one, result in zip(jobs, done, strict=False)]
    curves = [
        Curve(fleet, cost, told, tuple(points[start : start + len(LOADS)]))
        for start, (fleet, (cost, told)) in zip(range(0, len(points), len(LOADS)), fleets.items(), strict=True)
    ]
    others = [_point(whole, result, traffic) for result in done[len(jobs) :]]
    return Surroundings(tuple(curves), dict(zip(what_if, others, strict=True)))


def _point(job: Job, result: JobResult, traffic: Traffic) -> LoadPoint:
    run = result.run
    assert run is not None, "a run without a number of requests is not given up"
    offered = traffic.rate_req_s * job.load
    asked, worst = traffic.in_stretch or traffic.num_requests, None
    with suppress(InputError):  # where nothing completed there is no such figure
        worst = max(metric(run.metrics, name) / bound for name, bound in job.slo.items())
    good_req_s = offered * (run.num_good or 0) / asked if asked else 0.0
    return LoadPoint(job.load, offered, good_req_s, worst, not missed(run.metrics, job.slo))


def surroundings_tables(around: Surroundings, told: str) -> list[TextTable]:
    """Fleets by load, and the answer under other settings.

    Args:
        around: What was run.
        told: The point, to be put in front of the titles.
    """
    columns = ["fleet", "which", "GPUs", "meets up to", "that is", *(f"at {load:g} x" for load in LOADS)]
    rows = [
        [curve.name, curve.told, f"{curve.gpus:g}", *_most(curve), *(_worst(point) for point in curve.points)]
        for curve in around.curves
    ]
    caption = (
        "at each load, in units of the traffic: the worst figure against its bound, with a star where the level is missed. "
        "A fleet meets up to the last load before the first star."
    )
    tables = [TextTable(f"{told}the answer and the fleets next to it under more and less load", columns, rows, caption)]
    if around.what_if:
        rows = [[name, _worst(point), "meets" if point.meets else "misses"] for name, point in around.what_if.items()]
        tables.append(TextTable(f"{told}what if", ["setting", "worst figure / bound", "level"], rows))
    return tables


def _most(curve: Curve) -> tuple[str, str]:
    most = curve.most
    return ("none", "") if most is None else (f"{most.load:g} x", f"{most.offered_req_s:.3g} req/s")


def _worst(point: LoadPoint) -> str:
    worst = "none" if point.worst is None else f"{point.worst:.2f}"
    return worst if point.meets else f"{worst} *"


def drawn(curves: Sequence[Curve]) -> list[DrawnCurve]:
    """What figures show of them."""
    return [
        DrawnCurve(
            f"{one.name} ({one.told})",
            one.gpus,
            one.most.offered_req_s if one.most else 0.0,
            [(point.offered_req_s, point.good_req_s) for point in one.points],
            is_answer=index == 0,
        )
        for index, one in enumerate(curves)
    ]
