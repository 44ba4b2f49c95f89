"""The answers of a plan as tables, sentences and data; the terminal and the page show the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from epdsim.core.records import record
from epdsim.report.table import WORKING, TextTable, millis
from epdsim.scenario.jobs import JobResult
from epdsim.scenario.judged import Violation, violations
from epdsim.scenario.loader import Scenario
from epdsim.scenario.plan_curves import Curve, Surroundings
from epdsim.scenario.planning import (
    Fleet,
    Plan,
    Trial,
    binding_pool,
    contradiction,
    fleet_name,
    pool_utilisation,
    short_name,
)
from epdsim.scenario.points import Point, described, metric
from epdsim.scenario.runner import RunResult
from epdsim.scenario.stretch import Traffic

ASSUMED = "a fleet misses what one with at least as many instances in each pool was seen to miss; cheaper ones were left out for it"
ASSUMED_OF_STRETCH = "a fleet with more late requests in the busiest stretch than the level allows among all misses it"


@record
class Answer:
    """One point, planned.

    Attributes:
        point: Its axis values.
        plan: The search.
        check: The answer under the settings of `plan.check`; None where it was not asked for.
        traffic: What was planned for.
        left_out: Pools of the plan that the point's topology has not.
        drawn: The answer run once more for the page, on the busiest stretch where there is one; None without a page.
        around: It and the fleets next to it under other loads; None where that was not asked for.
        assumed: What its costs, and the GPUs that it counts, take for granted.
    """

    point: Point
    plan: Plan
    check: JobResult | None
    traffic: Traffic
    left_out: tuple[str, ...] = ()
    drawn: RunResult | None = None
    around: Surroundings | None = None
    assumed: tuple[str, ...] = ()

    @property
    def runs(self) -> list[RunResult]:
        """What was run to its end, in order."""
        results = [*(trial.result for trial in self.plan.trials), *filter(None, [self.check])]
        return [one.run for one in results if one.run is not None]

    @property
    def contradiction(self) -> tuple[Fleet, Fleet] | None:
        """A fleet that meets the level and one with at least as many instances in each pool that misses it; None without any.

        Only runs of the same traffic that are judged alike are compared: the curves are on the busiest stretch where there is one,
        and by its requests alone.
        """
        whole = [(trial.fleet, trial.meets) for trial in self.plan.trials if trial.is_whole]
        stretch = [(trial.fleet, trial.meets) for trial in self.plan.trials if not trial.is_whole]
        around = self.around.as_planned if self.around else []
        alike = [whole + around] if self.traffic.stretch_s is None else [whole, stretch, around]
        return next(filter(None, map(contradiction, alike)), None)

    @property
    def violations(self) -> list[Violation]:
        """Every property that one of them broke."""
        told = [(f"fleet {sizes(trial)}", trial.result) for trial in self.plan.trials]
        told += [("check", self.check)] if self.check else []
        return [one for name, result in told if result.run for one in violations([result.run], name)]


def sizes(trial: Trial) -> str:
    """Its instances, pool by pool."""
    return fleet_name(trial.fleet)


def assumptions(scenario: Scenario, answers: Sequence[Answer]) -> list[str]:
    """Those of the file, of the costs, and of the search."""
    found = dict.fromkeys(line for one in answers for line in _assumed(one))
    return [*scenario.spec.assumptions, *found]


def _assumed(one: Answer) -> list[str]:
    """What its costs and its search took for granted."""
    searched = [*([ASSUMED] if one.plan.num_untried else []), *([ASSUMED_OF_STRETCH] if one.traffic.stretch_s else [])]
    return [*one.assumed, *searched]


def answer_table(one: Answer, slo: Mapping[str, float]) -> TextTable:
    """The answer, and under it each neighbour with one instance less."""
    plan, told = one.plan, described(one.point)
    title = f"{told}: the smallest fleet" if told else "the smallest fleet"
    pools = [short_name(pool) for pool in plan.pools]
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
    told.append(f"busiest instance of each pool: {shares} of the time ({WORKING})")
    metrics = one.plan.answer.result.metrics
    if metrics is not None and metrics.ttft_by_stage_ms:
        stages = ", ".join(f"{stage} {millis(spent)}" for stage, spent in metrics.ttft_by_stage_ms.items())
        told.append(f"its mean TTFT goes to: {stages}")
    told.append(f"what binds: {binding_pool(one.plan) or 'nothing was measured'}; {_searched(one)}")
    told.append(_cheaper(one.plan))
    if one.contradiction is not None:
        met, missing = map(fleet_name, one.contradiction)
        told.append(
            f"more instances are not always better here: {met} meets the level and {missing} misses it"
            " (plan with longer traffic, or with room to spare)"
        )
    if one.check is not None:
        told.append(f"check: {_fate(one.check)}; " + ", ".join(_levels(one.check, slo)))
    return told


def _searched(one: Answer) -> str:
    """What was run on what."""
    trials, traffic = one.plan.trials, one.traffic
    whole = sum(trial.is_whole for trial in trials)
    rate = f"{traffic.rate_req_s:.3g} a second" if traffic.is_by_clock and traffic.rate_req_s else ""
    if traffic.stretch_s is None:
        return f"{whole} fleets were simulated on all {traffic.num_requests:,} requests" + (
            f" ({rate})" if rate else ""
        )
    start_s, end_s = traffic.stretch_s
    part = f"{traffic.in_stretch:,} of {traffic.num_requests:,} requests, {rate}"
    return (
        f"{len(trials) - whole} fleets were simulated on the busiest {end_s - start_s:g} s (from {start_s:g} s on, {part}), "
        f"{whole} on all of it, the answer and its neighbours among them"
    )


def _cheaper(plan: Plan) -> str:
    """What became of all fleets that cost less than the answer."""
    run = plan.num_cheaper - plan.num_untried
    if not plan.num_untried:
        return f"cheaper fleets: {plan.num_cheaper}, all of them were simulated and miss"
    return (
        f"cheaper fleets: {plan.num_cheaper}, of which {run} were simulated and miss; {plan.num_untried} were not, for a larger "
        "one misses (--exhaustive runs them too)"
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
        "assumed": _assumed(one),
        "cheaper": {"fleets": one.plan.num_cheaper, "not_simulated": one.plan.num_untried},
        "contradiction": one.contradiction and [*map(fleet_name, one.contradiction)],
        "traffic": dataclasses.asdict(one.traffic),
        "answer": trial(one.plan.answer),
        "neighbours": [trial(tried) for tried in one.plan.neighbours],
        "trials": [
            {key: value for key, value in trial(tried).items() if key != "metrics"} for tried in one.plan.trials
        ],
        "utilisation": pool_utilisation(one.plan.answer.result),
        "binds": binding_pool(one.plan),
        "check": one.check and {"meets": not one.check.missed, "missed": [str(bound) for bound in one.check.missed]},
        "around": one.around and _around_as_data(one.around, one.plan.pools),
        "violated": [violation.sentence for violation in one.violations],
    }


def _around_as_data(around: Surroundings, pools: Sequence[str]) -> dict[str, object]:
    def curve(one: Curve) -> dict[str, object]:
        return dataclasses.asdict(one) | {"name": one.name, "fleet": dict(zip(pools, one.fleet, strict=True))}

    return {**dataclasses.asdict(around), "curves": [curve(one) for one in around.curves]}
