"""The model's scheduler with the model's worker behind it, as the engine of a play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from epdsim.core.plan import StepPlan
from epdsim.core.rules import Dialect
from epdsim.core.workers.records import EncoderRun, Splice, WorkerStep
from epdsim.core.workers.worker import Worker
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_model import ModelEngine, request_of, scheduler_config
from epdsim.sut.schedule_play import Tokens
from epdsim.sut.schedule_records import RecordedRequest, RecordedWorkload


class Worked(NamedTuple):
    """What a worker did in a step: encoder runs with what it held for them, and the embeddings that its chunks take."""

    runs: Sequence[EncoderRun]
    splices: Sequence[Splice]

    @property
    def is_last(self) -> bool:
        """Whether a real worker ends with it: it lacks pixels, or embeddings."""
        return _lacks_pixels(self.runs) or any(one.num_rows is None for one in self.splices)


def told_until_lost(runs: Sequence[EncoderRun], splices: Sequence[Splice]) -> Worked:
    """A step as far as a real worker comes in it: one that lacks pixels gathers nothing."""
    return Worked(runs, () if _lacks_pixels(runs) else splices)


def _lacks_pixels(runs: Sequence[EncoderRun]) -> bool:
    return any(run.held != "full" for run in runs)


def is_workable(workload: RecordedWorkload) -> bool:
    """Whether a worker can take what happens: not yet sessions, drafts, KV transfers, pulled embeddings, other kinds of models."""
    config = workload.config
    is_other = config.is_encoder_decoder or config.mm_encoder_only or config.speculative_method != "none"
    resets = {which for _, which in workload.resets} - {"prefix", "encoder"}
    return not (is_other or resets or workload.updates or workload.ec or config.kv_role)


class WorkedModel(ModelEngine):
    """The model's scheduler and worker.

    Args:
        workload: Its settings are used.
        far: What is beyond its EC connector.
        dialect: Rules in force; by default those of the recorded release.

    Attributes:
        worker: The worker.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide, dialect: Dialect | None = None) -> None:
        super().__init__(workload, far, dialect)
        self.worker = Worker(scheduler_config(workload))
        self._plan: StepPlan | None = None
        self._worked: Worked | None = None
        self._is_lost = False

    def add(self, request: RecordedRequest) -> None:
        """A request arrives."""
        self.worker.add_request(request_of(request, self._far.ec))
        super().add(request)

    def reset(self, which: str) -> None:
        """Reset a cache, of both sides."""
        super().reset(which)
        if which == "encoder":
            self.worker.reset_encoder_cache()

    def schedule(self) -> StepPlan:
        """Plan the next step; the worker takes it in when its tokens are known."""
        self._plan = super().schedule()
        return self._plan

    def yielded(self, tokens: Tokens) -> None:
        """What the step just planned yields."""
        assert self._plan is not None, "a step has been planned"
        self.took(self._plan, self.worker.execute(self._plan, sampled=tokens))

    def took(self, _plan: StepPlan, done: WorkerStep) -> None:
        """The worker has taken a step."""
        self._worked = None if self._is_lost else told_until_lost(done.runs, done.splices)
        self._is_lost = self._is_lost or (self._worked is not None and self._worked.is_last)

    def worked(self) -> Worked | None:
        """What the worker did in the step just planned; None once it is lost."""
        return self._worked
