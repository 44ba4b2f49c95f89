"""What a scenario file claims of its runs, judged.

That claims and published figures name points that are run was checked when the file was loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.scenario.points import Point, matches, metric, unit
from epdsim.scenario.runner import RunResult
from epdsim.scenario.study import ScenarioResult

if TYPE_CHECKING:
    from epdsim.scenario.claims_schema import Claim, DeviationClaim, EqualClaim, GapClaim, PublishedSpec

Role = Literal["fitted", "given", "predicted"]


@record
class Comparison:
    """A published figure beside the simulated one.

    Attributes:
        role: `fitted` when the point was used to choose constants, `given` when it is one of them, otherwise `predicted`.
    """

    at: Point
    metric: str
    published: float
    simulated: float
    role: Role

    @property
    def deviation_percent(self) -> float:
        """Simulated against published."""
        return 100.0 * (self.simulated / self.published - 1.0)


@record
class Verdict:
    """One claim, judged."""

    holds: bool
    sentence: str


def compare(result: ScenarioResult) -> tuple[Comparison, ...]:
    """Every published figure of the file beside its simulated one."""
    return tuple(
        Comparison(one.at, one.metric, one.value, _simulated(one, result), _role(one, result))
        for one in result.scenario.spec.published
    )


def _simulated(published: PublishedSpec, result: ScenarioResult) -> float:
    try:
        return metric(_run_at(result, published.at).metrics, published.metric)
    except InputError as error:
        raise error.at(f"published figure at {_say(published.at)}") from error


def _role(published: PublishedSpec, result: ScenarioResult) -> Role:
    if published.given:
        return "given"
    fit = result.fit
    is_fitted = fit is not None and published.metric == fit.metric and published.at in fit.points
    return "fitted" if is_fitted else "predicted"


def judge(result: ScenarioResult) -> tuple[Verdict, ...]:
    """Every claim of the file."""
    return tuple(_judged(claim, result) for claim in result.scenario.spec.claims)


def _judged(claim: Claim, result: ScenarioResult) -> Verdict:
    """A claim on a figure that a run has not fails: all else that the runs came to is shown all the same."""
    try:
        return _judge(claim, result)
    except InputError as error:
        return Verdict(False, f"{claim.kind} claim: {error}")


def _judge(claim: Claim, result: ScenarioResult) -> Verdict:
    if claim.kind == "deviation":
        return _judge_deviation(claim, result)
    if claim.kind == "gap":
        return _judge_gap(claim, result)
    return _judge_equal(claim, result)


def _judge_deviation(claim: DeviationClaim, result: ScenarioResult) -> Verdict:
    rows = [row for row in compare(result) if row.metric == claim.metric and matches(row.at, claim.where)]
    worst = max(rows, key=lambda row: abs(row.deviation_percent))
    return Verdict(
        abs(worst.deviation_percent) <= claim.within_percent,
        f"{claim.metric} at {_say(claim.where)} within {claim.within_percent:g} %: worst {worst.deviation_percent:+.1f} % "
        f"at {_say(worst.at)}",
    )


def _judge_gap(claim: GapClaim, result: ScenarioResult) -> Verdict:
    high, low = (metric(_run_at(result, at).metrics, claim.metric) for at in (claim.high, claim.low))
    told = unit(claim.metric)
    return Verdict(
        abs(high - low - claim.published) <= claim.within,
        f"{claim.metric} gap from {_say(claim.low)} to {_say(claim.high)}: {high - low:.1f}{told}, "
        f"published {claim.published:g}{told}, within {claim.within:g}{told}",
    )


def _judge_equal(claim: EqualClaim, result: ScenarioResult) -> Verdict:
    groups: dict[tuple[tuple[str, object], ...], list[RunResult]] = {}
    for run in result.runs:
        if matches(run.point, claim.where):
            rest = tuple((axis, value) for axis, value in run.point.items() if axis != claim.across)
            groups.setdefault(rest, []).append(run)
    different = [
        f"{name} at {_say(dict(rest))}"
        for rest, group in groups.items()
        for name in claim.metrics
        if len({metric(run.metrics, name) for run in group}) > 1
    ]
    told = f"{', '.join(claim.metrics)} equal across {claim.across} at {_say(claim.where)}"
    return Verdict(not different, told + (f": different are {'; '.join(different)}" if different else ""))


def _run_at(result: ScenarioResult, at: Point) -> RunResult:
    return next(run for run in result.runs if dict(run.point) == dict(at))


def _say(point: object) -> str:
    if not isinstance(point, dict):
        return str(point)

    def shown(value: object) -> str:
        return "/".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)

    return ", ".join(f"{axis} {shown(value)}" for axis, value in point.items()) or "all"
