"""The model's worker beside the release's runner: random workloads, and what both hold after every step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from epdsim.core.plan import StepPlan
from epdsim.core.rules import Dialect
from epdsim.core.strip import payload_kind
from epdsim.core.workers.records import WorkerStep
from epdsim.core.workers.worker import Worker
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_ec_workloads import EC_MODES
from epdsim.sut.schedule_model import ModelEngine, request_of, scheduler_config
from epdsim.sut.schedule_modes import DRAFT_MODES, ENCODER_MODES, MODES, SESSION_MODES, TRANSFER_MODES
from epdsim.sut.schedule_play import NumDrafts, Play, Tokens
from epdsim.sut.schedule_recorder import record
from epdsim.sut.schedule_records import RecordedRequest, RecordedWorkload
from epdsim.sut.schedule_workloads import ScheduleScript, schedule_workload
from epdsim.sut.vllm.engine import VllmEngine
from epdsim.sut.vllm.mirrored_caches import CacheReport
from epdsim.sut.vllm.runners import State, V1Runner, V2Runner, state_after

RUNNER_MODES = tuple(
    mode for mode in MODES if mode not in {*SESSION_MODES, *EC_MODES, *ENCODER_MODES, *TRANSFER_MODES, *DRAFT_MODES}
)
"""Not compared are sessions and resets with all that runs, as a play does not tell which outputs those keep; EC connectors that
defer or lose items, whose loads are not a step's own; encoder-decoder and encoder-only engines; loads between steps; and drafts."""


class RunningEngine(VllmEngine):
    """The real scheduler with a real runner behind it, which takes every plan in.

    Attributes:
        states: Of the runner, one for each step.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide) -> None:
        super().__init__(workload, far)
        self._runner = (V1Runner if workload.config.model_runner == "v1" else V2Runner)(workload)
        self._features: dict[str, Sequence[Any]] = {}
        self.states: list[State] = []

    def reset(self, which: str) -> None:
        """Reset a cache, of both sides."""
        super().reset(which)
        if which == "encoder":
            self._runner.reset_encoder_cache()

    def schedule(self) -> Any:
        """Plan the next step; the runner takes it in."""
        plan = super().schedule()
        self._features |= {name: request.mm_features for name, request in self.scheduler.requests.items()}
        self.states.append(self._runner.execute(plan, self._features))
        return plan

    def yielded(self, tokens: Tokens) -> None:
        """What the step just planned yields."""
        self._runner.sampled(tokens)


class ModelRunning(ModelEngine):
    """The model's scheduler with the model's worker behind it.

    Attributes:
        states: Of the worker, one for each step.
        violations: What the worker said.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide, dialect: Dialect | None = None) -> None:
        super().__init__(workload, far, dialect)
        self.worker = Worker(scheduler_config(workload))
        self.states: list[State] = []
        self.violations: list[str] = []
        self._plan: StepPlan | None = None

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
        assert self._plan is not None
        done = self.worker.execute(self._plan, sampled=tokens)
        self.violations += [one.property_id for one in done.violations]
        self.states.append(model_state(self.worker, self._plan, done))


def model_state(worker: Worker, plan: StepPlan, done: WorkerStep) -> State:
    """The worker in the form of a real runner."""
    requests: State = {}
    for name, count in plan.num_scheduled_tokens.items():
        held = worker.requests[name]
        kinds = [payload_kind(one.data) for one in held.features]
        requests[name] = [list(held.block_ids), held.num_computed_tokens - count, kinds]
    missing = (one.what for one in done.violations if one.property_id == "ENC-HIT")
    missed = re.findall(r"\((.*)\)", next(missing, ""))
    return state_after(plan, requests, worker.requests, worker.embeddings, done.encoded, "".join(missed))


class RunningPlay(Play[Any]):
    """A play whose engine hears of a step's tokens when it is planned."""

    def _finish(
        self, number: int, plan: Any, tokens: Tokens, copies: Mapping[str, Sequence[str]], drafts: NumDrafts
    ) -> dict[str, Any]:
        self.engine.yielded(tokens)  # type: ignore[attr-defined]
        return super()._finish(number, plan, tokens, copies, drafts)


def compare_runners(modes: Sequence[str], seeds: range, release: str, dialect: Dialect | None = None) -> CacheReport:
    """Compare the model's worker with the release's runner on random workloads.

    Args:
        modes: Of `schedule_workloads`.
        seeds: Each gives a workload of every mode.
        release: The installed one.
        dialect: Of the model; by default that of the release.
    """
    report = CacheReport(len(seeds) * len(modes), 0, {}, [])
    for seed in seeds:
        for mode in modes:
            difference = _compare(schedule_workload(mode, seed, release), dialect, report)
            if difference:
                report.differences.append(f"{mode} seed {seed}, {difference}")
    return report


def _compare(script: ScheduleScript, dialect: Dialect | None, report: CacheReport) -> str:
    plays: list[RunningPlay] = []

    def make_play(workload: RecordedWorkload) -> RunningPlay:
        plays.append(RunningPlay(workload, RunningEngine))
        return plays[-1]

    workload = record(script, make_play)
    play = RunningPlay(workload, lambda given, far: ModelRunning(given, far, dialect))
    for step in workload.steps:
        play.step(step["step"], lambda name, _, tokens=step["sampled"]: tokens.get(name, []))
    model, real = play.engine.states, plays[0].engine.states  # type: ignore[attr-defined]
    for property_id in dict.fromkeys(play.engine.violations):  # type: ignore[attr-defined]
        report.count(f"workloads with {property_id}")
    for number, (ours, theirs) in enumerate(zip(model, real, strict=True)):
        report.operations += 1
        for what in ("encoded", "embeddings", "others"):
            if theirs[what]:
                report.count(f"steps with {what}")
        if ours != theirs:
            field = next(name for name in ours if ours[name] != theirs[name])
            return f"step {number}, {field}: model {ours[field]}, release {theirs[field]}"
        if theirs["missed"]:
            report.count("engine lost at a gather")
            return ""  # the release's engine is gone
    return ""
