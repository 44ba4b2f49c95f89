"""The answers of a plan as tables, sentences, data, and a page; the terminal and the page show the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from epdsim.core.errors import InputError
from epdsim.report import figures
from epdsim.report.figures import DrawnFleet, DrawnRun
from epdsim.report.html import Report, ReportSection
from epdsim.report.observer import RunObserver
from epdsim.report.table import TextTable, millis, summary_rows
from epdsim.scenario.loader import Scenario
from epdsim.scenario.planning import Plan, Trial, binding_pool, pool_utilisation
from epdsim.scenario.points import Point, described, metric
from epdsim.scenario.runner import run_point
from epdsim.scenario.store import JobResult
from epdsim.scenario.stretch import Traffic

ASSUMED = "what one fleet misses, no fleet with fewer instances in one pool and as many in the others meets"
ASSUMED_OF_STRETCH = "a fleet with more late requests in the busiest stretch than the level allows among all misses it"

_FLEETS = (
    "Each fleet by its GPUs, and its worst figure against the bound of it: below 1 it meets the level. On the busiest stretch "
    "alone a fleet may be above and still meet it on all of the traffic."
)


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


def sizes(trial: Trial) -> str:
    """Its instances, pool by pool."""
    return " + ".join(map(str, trial.fleet))


def assumptions(scenario: Scenario, answers: Sequence[Answer]) -> list[str]:
    """Those of the file, and those of the search."""
    has_stretch = any(one.traffic.stretch_s for one in answers)
    return [*scenario.spec.assumptions, ASSUMED, *([ASSUMED_OF_STRETCH] if has_stretch else [])]


def answer_table(one: Answer, slo: Mapping[str, float]) -> TextTable:
    """The answer, and under it each neighbour with one instance less."""
    plan, told = one.plan, described(one.point)
    title = f"{told}: the smallest fleet" if told else "the smallest fleet"
    pools = [pool.removeprefix("fleet.").removesuffix(".count") for pool in plan.pools]
    shown = [("answer", plan.answer), *(("one less", trial) for trial in plan.neighbours)]
    rows = [
        [name, *map(str, trial.fleet), f"{trial.cost:g}", *_levels(trial.result, slo), _fate(trial.result)]
        for name, trial in shown
    ]
    columns = ["fleet", *pools, "GPUs", *(f"{name} (most {bound:g})" for name, bound in slo.items()), "level"]
    return TextTable(title, columns, rows)


def sentences(one: Answer, slo: Mapping[str, float]) -> list[str]:
    """What is to be said under the table."""
    told: list[str] = []
    if one.left_out:
        told.append(f"left out, for the topology has no such pool: {', '.join(one.left_out)}")
    busy = pool_utilisation(one.plan.answer.result)
    shares = ", ".join(f"{pool} {100 * share:.0f} %" for pool, share in busy.items())
    told.append(f"busiest instance of each pool: {shares}")
    metrics = one.plan.answer.result.metrics
    if metrics is not None and metrics.ttft_by_stage_ms:
        stages = ", ".join(f"{stage} {millis(spent)}" for stage, spent in metrics.ttft_by_stage_ms.items())
        told.append(f"its mean TTFT goes to: {stages}")
    told.append(f"what binds: {binding_pool(one.plan) or 'nothing was measured'}; {_searched(one)}")
    if one.check is not None:
        told.append(f"check: {_fate(one.check)}; " + ", ".join(_levels(one.check, slo)))
    return told


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


def as_data(one: Answer) -> dict[str, object]:
    """Everything, for programs."""

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


def plan_report(scenario: Scenario, seed: int, answers: Sequence[Answer]) -> Report:
    """What the page shows; each answer is run once more, to draw it: on the busiest stretch where there is one.

    Raises:
        InputError: A line of a trace cannot be used.
    """
    spec = scenario.spec
    tables: list[TextTable] = []
    sections: list[ReportSection] = []
    for one in answers:
        tables.append(dataclasses.replace(answer_table(one, spec.slo), caption="; ".join(sentences(one, spec.slo))))
        told = f"{described(one.point)}: " if one.point else ""
        fleet, observer = dict(zip(one.plan.pools, one.plan.answer.fleet, strict=True)), RunObserver()
        stretch_s = one.traffic.stretch_s
        run = run_point(scenario, one.point, seed, fleet, [observer], stretch_s=stretch_s)
        drawn = DrawnRun("", run.metrics, observer)
        where = f"on the busiest {stretch_s[1] - stretch_s[0]:g} s" if stretch_s else "on all of the traffic"
        tables.append(TextTable(f"{told}the answer {where}", ["figure", "value"], summary_rows(run.metrics)))
        fleets = [_drawn(trial, one.plan, spec.slo) for trial in one.plan.trials]
        sections += [
            ReportSection(
                f"{told}fleets that were tried",
                [
                    (
                        "Each fleet by its GPUs, and its worst figure against its bound: below 1 it meets the level.",
                        figures.fleets(fleets),
                    )
                ],
            ),
            ReportSection(f"{told}latency of the answer {where}", [("", figures.latency_cdf([drawn]))]),
            ReportSection(f"{told}where its TTFT goes", [("", figures.ttft_stages([drawn]))]),
            ReportSection(f"{told}its load over time", [("", figures.loads(drawn))]),
        ]
    told_of_all = assumptions(scenario, answers)
    return Report(spec.name, spec.title, spec.source, seed, told_of_all, (), "", (), tables, sections)


def _drawn(trial: Trial, plan: Plan, slo: Mapping[str, float]) -> DrawnFleet:
    metrics, ratio = trial.result.metrics, None
    if metrics is not None:
        with suppress(InputError):  # a stretch in which nothing completed has no such figure
            ratio = max(metric(metrics, name) / bound for name, bound in slo.items())
    kind = "answer" if trial is plan.answer else "all" if trial.is_whole else "stretch"
    return DrawnFleet(sizes(trial), trial.cost, ratio, kind)
