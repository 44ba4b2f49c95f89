"""Runs as plain records that any process can carry out, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from epdsim.core.records import record
from epdsim.core.request import WARM_UP
from epdsim.events import Sink
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.goodput import find_goodput
from epdsim.scenario.loader import Scenario, load_scenario
from epdsim.scenario.points import Point
from epdsim.scenario.runner import RunResult, build_point, run_point
from epdsim.scenario.slo import GoodCounter, Missed, SloGuard, SloMissedError, missed


@record
class Job:
    """One run.

    Attributes:
        path: The scenario file.
        overrides: `dotted.key=value` settings, as on the command line.
        point: Axis values.
        seed: Of all random streams.
        constants: Dotted keys and numbers to put in on top.
        slo: Bounds to judge the run by.
        num_requests: Measured requests of the workload, for giving the run up as soon as a bound cannot hold; 0 runs it to its end.
        stretch_s: From and to, in seconds: run that stretch of the workload only. Bounds are then judged by `num_requests`, the
            number in all of it: what is missed is missed by the stretch alone.
        load: Have the requests come so many times as fast.
        at_goodput: Search the highest rate that meets `slo`, as the file's `goodput` says, and run at that one.
        is_judged: Let the monitors of the properties judge the run.
        wants_picture: Keep what a report draws of it.
    """

    path: Path
    overrides: tuple[str, ...]
    point: Point
    seed: int
    constants: Mapping[str, float] = field(default_factory=dict[str, float])
    slo: Mapping[str, float] = field(default_factory=dict[str, float])
    num_requests: int = 0
    stretch_s: tuple[float, float] | None = None
    load: float = 1.0
    at_goodput: bool = False
    is_judged: bool = False
    wants_picture: bool = False


@record
class JobResult:
    """What a job came to.

    Attributes:
        run: The run; None when it was given up.
        missed: Bounds that do not hold; empty without `slo`.
    """

    run: RunResult | None
    missed: tuple[Missed, ...] = ()

    @property
    def metrics(self) -> RunMetrics | None:
        """The figures; None when the run was given up."""
        return None if self.run is None else self.run.metrics


@record
class Listeners:
    """Takers of the events of runs, which then take place in this process, one after the other.

    Attributes:
        sinks_for: By axis values; called as the run begins.
        wants_detail: Make the events of detail too, step by step.
    """

    sinks_for: Callable[[Point], Sequence[Sink]] = lambda _: ()
    wants_detail: bool = False


SILENT = Listeners()


class RunJobs(Protocol):
    """Runs jobs, at best several at a time; their results in order."""

    def __call__(self, jobs: Sequence[Job], listeners: Listeners | None = None, /) -> list[JobResult]:
        """Run them; with listeners in this process."""
        ...


def run_job(job: Job, scenario: Scenario | None = None, listeners: Listeners = SILENT) -> JobResult:
    """Run one job in this process.

    Args:
        job: What to run.
        scenario: Its file, where it is loaded already.
        listeners: They hear that run alone, not those of a search for its goodput.

    Raises:
        InputError: It cannot be built.
    """
    loaded = scenario or loaded_once(job.path, job.overrides)
    if job.at_goodput:
        return _run_at_goodput(job, loaded, listeners)
    guard = SloGuard(job.slo, job.num_requests) if job.num_requests else None
    counter = GoodCounter(job.slo) if job.slo else None
    try:
        run = run_point(
            loaded,
            job.point,
            job.seed,
            job.constants,
            [*(one for one in (guard, counter) if one is not None), *listeners.sinks_for(job.point)],
            wants_detail=listeners.wants_detail,
            is_judged=job.is_judged,
            wants_picture=job.wants_picture,
            stretch_s=job.stretch_s,
            load=job.load,
        )
    except SloMissedError as error:
        return JobResult(None, (error.missed,))
    if counter is not None:
        run = replace(run, num_good=counter.num_good)
    return JobResult(run, missed(run.metrics, {} if job.stretch_s else job.slo))


def _run_at_goodput(job: Job, scenario: Scenario, listeners: Listeners) -> JobResult:
    wanted = scenario.spec.goodput
    assert wanted is not None, "a goodput is searched where the file has the section"

    def at_rate(rate: float) -> dict[str, float]:
        return {**job.constants, wanted.key: rate}

    def misses(rate: float) -> bool:
        count = count_requests(scenario, job.point, job.seed, at_rate(rate))
        tried = replace(
            job, constants=at_rate(rate), num_requests=count, at_goodput=False, is_judged=False, wants_picture=False
        )
        return bool(run_job(tried, scenario).missed)

    found = find_goodput(wanted, misses)
    chosen = replace(job, constants=at_rate(found.rate), slo={}, at_goodput=False)
    run = run_job(chosen, scenario, listeners).run
    assert run is not None, "a run without bounds is not given up"
    return JobResult(replace(run, metrics=found.put_into(run.metrics)))


def count_requests(scenario: Scenario, point: Point, seed: int, constants: Mapping[str, float] | None = None) -> int:
    """Requests of a workload that are no warm-up."""
    return sum(one.slo_class != WARM_UP for one in build_point(scenario, point, seed, constants).workload)


def loaded_once(path: Path, overrides: tuple[str, ...]) -> Scenario:
    """A scenario file, read again only when it has changed: of a sweep each process loads it once.

    Raises:
        InputError: It cannot be used.
    """
    try:
        status = path.stat()
    except OSError:
        return load_scenario(path, overrides)
    return _loaded(path.absolute(), path, overrides, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _loaded(_place: Path, path: Path, overrides: tuple[str, ...], _size: int, _changed_ns: int) -> Scenario:
    return load_scenario(path, overrides)
