"""Many runs of one scenario over the cores of the machine; results come in the order of the jobs, whoever finished first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.events import Sink
from epdsim.report.table import console
from epdsim.scenario.jobs import SILENT, Job, JobResult, Listeners, RunJobs, run_job
from epdsim.scenario.points import Point
from epdsim.scenario.progress import SweepProgress

if TYPE_CHECKING:
    from epdsim.scenario.pool import WorkerPool
    from epdsim.scenario.store import ResultStore

MOST = 256
"""Workers."""


@record
class Sweep:
    """How the runs of a verb are carried out.

    Attributes:
        processes: At most so many; None for what `workers` takes.
        store: Folder of finished runs; None for none.
        is_judged: Let the monitors of the properties judge each run.
        is_on_ray: Have the machines of a Ray cluster run them; they read the scenario, and what it names, under the same paths.
    """

    processes: int | None = None
    store: Path | None = None
    is_judged: bool = False
    is_on_ray: bool = False

    @contextmanager
    def started(self, progress: SweepProgress | None = None) -> Iterator[RunJobs]:
        """The workers for it.

        Raises:
            InputError: The store cannot be used, or what `workers` raises.
        """
        count = self.processes or (MOST if self.is_on_ray else None)
        with workers(count, self._opened_store(), progress, is_on_ray=self.is_on_ray) as run_jobs:
            yield run_jobs

    def _opened_store(self) -> ResultStore | None:
        if self.store is None:
            return None
        from epdsim.scenario.store import ResultStore  # noqa: PLC0415 - most runs are kept nowhere

        return ResultStore(self.store)


@contextmanager
def workers(
    count: int | None = None,
    store: ResultStore | None = None,
    progress: SweepProgress | None = None,
    *,
    is_on_ray: bool = False,
) -> Iterator[RunJobs]:
    """Worker processes for a while: a function that runs jobs on them and gives the results in order.

    A process that ends abruptly, as when memory is short, takes no result with it but its own: what is not done is run again, on
    half as many processes, which is told on stderr. When the block fails or is interrupted, the processes end at once; what was
    finished by then is in the store, and is taken from there the next time.

    Args:
        count: Processes. By default this one alone for the first second, which small sweeps need not even, then one per core. One
            job, one process, or listeners: it runs in this process.
        store: Where finished runs are kept. A run that cannot be written there, as when the disk is full, is told and goes on.
        progress: Told each run that ends.
        is_on_ray: Whether they are those of a Ray cluster.

    Raises:
        InputError: From a job that cannot be built.
    """
    team = _Team(count, store, progress, is_on_ray=is_on_ray)
    try:
        yield team.run
    except BaseException:
        team.tell_kept()
        raise
    finally:
        team.end()


_ALONE_S = 1.0
"""What it takes to start a process, about."""


class _Team:
    """Worker processes, started when there is work for them."""

    def __init__(
        self, count: int | None, store: ResultStore | None, progress: SweepProgress | None, *, is_on_ray: bool
    ) -> None:
        self._is_on_ray = is_on_ray
        self._count, self._store, self._progress = count or os.cpu_count() or 1, store, progress
        self._alone_s = _ALONE_S if count is None else 0.0
        self._pool: WorkerPool | None = None
        self._kept = 0
        self._is_full = False

    def run(self, jobs: Sequence[Job], listeners: Listeners | None = None, /) -> list[JobResult]:
        """Run jobs; their results in order. With listeners nothing is taken from the store."""
        if self._progress is not None:
            self._progress.expect(len(jobs))
        keys = self._keys(jobs) if listeners is None else []
        done: dict[int, JobResult] = {}
        for index, key in enumerate(keys):
            result = self._store.get(key) if self._store is not None else None
            if result is not None:
                done[index] = result
                self._told(is_stored=True)

        def finish(index: int, result: JobResult) -> None:
            done[index] = result
            if keys:
                self._keep(keys[index], jobs[index], result)
            self._told()

        while len(done) < len(jobs):
            left = [index for index in range(len(jobs)) if index not in done]
            if self._count == 1 or len(left) == 1 or self._alone_s > 0 or listeners is not None:
                finish(left[0], self._run_here(jobs[left[0]], listeners))
            elif not self._run_beside(jobs, left, finish):
                self.end()
                self._count //= 2
                told = f"{len(jobs) - len(done)} of {len(jobs)} runs start again on {self._count}, the others are kept"
                _tell(f"a worker process ended abruptly (is memory short?); {told}")
        return [done[index] for index in range(len(jobs))]

    def _run_here(self, job: Job, listeners: Listeners | None) -> JobResult:
        begun_s = time.monotonic()
        heard = SILENT if listeners is None else listeners
        if self._progress is not None and self._progress.is_shown:
            counted = self._progress

            def sinks_for(point: Point) -> Sequence[Sink]:
                return [counted, *heard.sinks_for(point)]

            result = run_job(job, listeners=replace(heard, sinks_for=sinks_for))
        else:
            result = run_job(job, listeners=heard)
        self._alone_s -= time.monotonic() - begun_s
        return result

    def _run_beside(self, jobs: Sequence[Job], left: Sequence[int], finish: Callable[[int, JobResult], None]) -> bool:
        """Run jobs in worker processes; whether all of these lived to see the end."""
        from epdsim.scenario.pool import WorkerPool  # noqa: PLC0415 - a single run needs no process beside this one

        if self._pool is None:
            self._pool = WorkerPool(min(self._count, len(left)), is_on_ray=self._is_on_ray)
        return self._pool.run(jobs, left, finish)

    def _keys(self, jobs: Sequence[Job]) -> list[str]:
        """What their results are stored under; empty where they are not."""
        if self._store is None:
            return []
        from epdsim.scenario.store import job_key  # noqa: PLC0415 - as above

        return [job_key(job) for job in jobs]

    def _keep(self, key: str, job: Job, result: JobResult) -> None:
        assert self._store is not None, "there are keys only with a store"
        about = {"scenario": str(job.path), "at": dict(job.point), "seed": job.seed, "constants": dict(job.constants)}
        try:
            self._store.put(key, result, about)
            self._kept += 1
        except InputError as error:
            if not self._is_full:
                _tell(f"{error}; runs that end from here on are in the results, and not in the store")
            self._is_full = True

    def _told(self, *, is_stored: bool = False) -> None:
        if self._progress is not None:
            self._progress.ended(is_stored=is_stored)

    def tell_kept(self) -> None:
        """Say what a sweep that fails or is interrupted leaves behind."""
        if self._kept and self._store is not None:
            _tell(f"{self._kept} finished runs are kept in {self._store.folder}: the same command goes on from there")

    def end(self) -> None:
        """End the processes, whatever they do."""
        if self._pool is not None:
            self._pool.end()
            self._pool = None


def _tell(sentence: str) -> None:
    console(stderr=True).print(f"epdsim: {sentence}", soft_wrap=True)
