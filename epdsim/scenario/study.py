"""All runs of a scenario: its constants fitted, then every point run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epdsim.core.records import record
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.expected import check_figures
from epdsim.scenario.goodput import searches_goodput
from epdsim.scenario.jobs import Job, JobResult, Listeners, RunJobs, run_job
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point
from epdsim.scenario.runner import RunResult

if TYPE_CHECKING:
    from epdsim.scenario.fit import Fit, RunPoints


@record
class ScenarioResult:
    """All runs of a scenario, and the constants that were fitted for them."""

    scenario: Scenario
    seed: int
    runs: tuple[RunResult, ...]
    fit: Fit | None


def run_here(jobs: Sequence[Job], listeners: Listeners | None = None, /) -> list[JobResult]:
    """Run jobs in this process, one after the other.

    Raises:
        InputError: One cannot be built.
    """
    return [run_job(job, listeners=listeners or Listeners()) for job in jobs]


def run_scenario(
    scenario: Scenario,
    *,
    seed: int | None = None,
    run_jobs: RunJobs = run_here,
    listeners: Listeners | None = None,
    is_judged: bool = False,
    wants_picture: bool = False,
) -> ScenarioResult:
    """Fit what the file asks to fit, then run every point.

    Args:
        scenario: A loaded file.
        seed: In place of the file's.
        run_jobs: Runs them.
        listeners: Takers of the events of the points' runs, not those of the fit.
        is_judged: Let the monitors judge each run as it goes.
        wants_picture: Keep of each run what a report draws.

    Raises:
        InputError: A point cannot be built, or has not a figure that is compared, both found before any of them runs; or a line
            of a trace cannot be used.
    """
    chosen = scenario.spec.seed if seed is None else seed
    check_figures(scenario, chosen)

    def job(point: Point, constants: Mapping[str, float], *, is_last: bool) -> Job:
        spec, searched = scenario.spec, searches_goodput(scenario.spec, point)
        return Job(
            scenario.file.path,
            scenario.overrides,
            point,
            chosen,
            constants,
            spec.slo if searched else {},
            at_goodput=searched,
            is_judged=is_judged and is_last,
            wants_picture=wants_picture and is_last,
        )

    def measure(asked: Sequence[tuple[Point, Mapping[str, float]]]) -> list[RunMetrics]:
        return [run.metrics for run in _runs(run_jobs([job(*one, is_last=False) for one in asked]))]

    fit = _fitted(scenario, measure)
    constants = fit.constants if fit else {}
    done = run_jobs([job(point, constants, is_last=True) for point in scenario.points], listeners)
    return ScenarioResult(scenario, chosen, tuple(_runs(done)), fit)


def _fitted(scenario: Scenario, measure: RunPoints) -> Fit | None:
    if scenario.spec.fit is None:
        return None
    from epdsim.scenario.fit import fit_constants  # noqa: PLC0415 - few files ask for it

    return fit_constants(scenario, measure)


def _runs(done: Sequence[JobResult]) -> list[RunResult]:
    runs = [one.run for one in done if one.run is not None]
    assert len(runs) == len(done), "only a run that has bounds to meet is given up"
    return runs
