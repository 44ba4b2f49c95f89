"""Many runs of one scenario over the cores of the machine; results come in the order of the jobs, whoever finished first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from epdsim.report.metrics import RunMetrics
from epdsim.scenario.loader import Scenario, load_scenario
from epdsim.scenario.points import Point
from epdsim.scenario.runner import run_point
from epdsim.scenario.slo import Missed, SloGuard, SloMissedError, missed


@dataclass(frozen=True, slots=True)
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
    """

    path: Path
    overrides: tuple[str, ...]
    point: Point
    seed: int
    constants: Mapping[str, float] = field(default_factory=dict[str, float])
    slo: Mapping[str, float] = field(default_factory=dict[str, float])
    num_requests: int = 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job came to.

    Attributes:
        metrics: Its figures; None when it was given up.
        missed: Bounds that do not hold; empty without `slo`.
    """

    metrics: RunMetrics | None
    missed: tuple[Missed, ...]


def run_job(job: Job, scenario: Scenario | None = None) -> JobResult:
    """Run one job in this process.

    Args:
        job: What to run.
        scenario: Its file, where it is loaded already.

    Raises:
        InputError: It cannot be built.
    """
    loaded = scenario or load_scenario(job.path, job.overrides)
    guards = [SloGuard(job.slo, job.num_requests)] if job.num_requests else []
    try:
        metrics = run_point(loaded, job.point, job.seed, job.constants, guards).metrics
    except SloMissedError as error:
        return JobResult(None, (error.missed,))
    return JobResult(metrics, missed(metrics, job.slo))


@contextmanager
def workers(count: int | None = None) -> Iterator[Callable[[Sequence[Job]], list[JobResult]]]:
    """Worker processes for a while: a function that runs jobs on them and gives the results in order.

    Args:
        count: Processes; by default one per core. One job, or one process, runs in this process.

    Raises:
        InputError: From a job that cannot be built.
    """
    number = count or os.cpu_count() or 1
    # A fresh interpreter per process: threads of numerical libraries do not survive a fork.
    with ProcessPoolExecutor(number, mp_context=get_context("spawn")) as pool:

        def run(jobs: Sequence[Job]) -> list[JobResult]:
            if number == 1 or len(jobs) == 1:
                return [run_job(job) for job in jobs]
            futures: list[Future[JobResult]] = [pool.submit(run_job, job) for job in jobs]
            return [future.result() for future in futures]

        yield run
