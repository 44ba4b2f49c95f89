"""Workers beside this process: processes of this machine, or the machines of a Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

from epdsim.scenario.jobs import Job, JobResult, run_job


class RayPool:
    """The machines of a Ray cluster, or this one where there is none; how many tasks work at a time is Ray's affair.

    Raises:
        InputError: Ray is not installed.
    """

    def __init__(self) -> None:
        from epdsim.testing.soak import start_ray  # noqa: PLC0415 - where it is asked for

        self._ray = start_ray()

    def submit(self, fn: Callable[[Job], JobResult], job: Job) -> Future[JobResult]:
        """Have a job run."""
        return self._ray.remote(fn).remote(job).future()

    def shutdown(self, *, cancel_futures: bool) -> None:  # noqa: ARG002 - its tasks end with the connection
        """End them."""
        self._ray.shutdown()


class WorkerPool:
    """Workers for a while.

    Args:
        count: Processes, where they are of this machine.
        is_on_ray: Whether they are those of a Ray cluster.

    Raises:
        InputError: Ray is not installed.
    """

    def __init__(self, count: int, *, is_on_ray: bool) -> None:
        self._others = frozenset(child.pid for child in active_children())
        self._pool = RayPool() if is_on_ray else _start_processes(count)

    def run(self, jobs: Sequence[Job], left: Sequence[int], finish: Callable[[int, JobResult], None]) -> bool:
        """Run jobs, each finished as it ends; whether all processes lived to see the end.

        Args:
            jobs: All of a sweep.
            left: Places of those to run.
            finish: Takes place and result.
        """
        futures: dict[Future[JobResult], int] = {}
        try:
            futures = {self._pool.submit(run_job, jobs[index]): index for index in left}
        except BrokenProcessPool:
            return False
        pending, is_whole = set(futures), True
        while pending:
            ended, pending = wait(pending, return_when=FIRST_COMPLETED)
            errors: list[BaseException] = []
            for future in sorted(ended, key=futures.__getitem__):
                error = future.exception()
                if error is None:
                    finish(futures[future], future.result())
                elif isinstance(error, BrokenProcessPool):
                    is_whole = False
                else:
                    errors.append(error)
            if errors:
                raise errors[0]
        return is_whole

    def end(self) -> None:
        """End the processes, whatever they do."""
        for child in active_children():
            if child.pid not in self._others:
                child.terminate()
        self._pool.shutdown(cancel_futures=True)


def _start_processes(count: int) -> ProcessPoolExecutor:
    """A fresh interpreter each, as threads of numerical libraries do not survive a fork."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_follow_parent)


def _follow_parent() -> None:
    """A worker leaves interrupts to the process that started it, and ends when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        Thread(target=follow, daemon=True).start()
