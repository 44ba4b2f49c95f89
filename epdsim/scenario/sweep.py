"""Many runs of one scenario over the cores of the machine; results come in the order of the jobs, whoever finished first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread

from epdsim.report.metrics import RunMetrics
from epdsim.report.table import console
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

    A process that ends abruptly, as when memory is short, takes no result with it but its own: what is not done is run again, on
    half as many processes, which is told on stderr. When the block fails or is interrupted, the processes end at once.

    Args:
        count: Processes; by default one per core. One job, or one process, runs in this process.

    Raises:
        InputError: From a job that cannot be built.
    """
    team = _Team(count or os.cpu_count() or 1)
    try:
        yield team.run
    finally:
        team.end()


class _Team:
    """Worker processes, started when the first jobs come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._others = frozenset[int | None]()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """Run jobs; their results in order."""
        done: dict[int, JobResult] = {}
        while len(done) < len(jobs):
            left = [index for index in range(len(jobs)) if index not in done]
            if self._count == 1 or len(left) == 1:
                done |= {index: run_job(jobs[index]) for index in left}
            else:
                self._run_beside(jobs, left, done)
        return [done[index] for index in range(len(jobs))]

    def _run_beside(self, jobs: Sequence[Job], left: Sequence[int], done: dict[int, JobResult]) -> None:
        try:
            pool = self._started(len(left))
            futures = {index: pool.submit(run_job, jobs[index]) for index in left}
            wait(futures.values(), return_when=FIRST_EXCEPTION)
            for index, future in futures.items():
                error = future.exception() if future.done() else None
                if error is not None and not isinstance(error, BrokenProcessPool):
                    raise error
                if future.done() and error is None:
                    done[index] = future.result()
            broken = len(done) < len(jobs)
        except BrokenProcessPool:
            broken = True
        if broken:
            self.end()
            self._count //= 2
            told = f"{len(jobs) - len(done)} of {len(jobs)} runs start again on {self._count}, the others are kept"
            console(stderr=True).print(f"epdsim: a worker process ended abruptly (is memory short?); {told}")

    def _started(self, num_jobs: int) -> ProcessPoolExecutor:
        if self._pool is None:
            self._others = frozenset(child.pid for child in active_children())
            # A fresh interpreter per process: threads of numerical libraries do not survive a fork.
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(min(self._count, num_jobs), mp_context=spawn, initializer=_follow_parent)
        return self._pool

    def end(self) -> None:
        """End the processes, whatever they do."""
        if self._pool is not None:
            for child in active_children():
                if child.pid not in self._others:
                    child.terminate()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _follow_parent() -> None:
    """A worker leaves interrupts to the process that started it, and ends when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        Thread(target=follow, daemon=True).start()
