"""The model's worker beside the release's runner: random workloads, and what both hold after every step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from epdsim.core.plan import StepPlan
from epdsim.core.rules import Dialect
from epdsim.core.strip import payload_kind
from epdsim.core.workers.records import WorkerStep
from epdsim.core.workers.worker import Worker
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_modes import ENCODER_MODES, LATER_MODES, MODES
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_recorder import record_workload
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workers import WorkedModel
from epdsim.sut.schedule_workloads import ScheduleScript, schedule_workload
from epdsim.sut.vllm.mirrored_caches import CacheReport
from epdsim.sut.vllm.runners import COMPARED, State, state_after
from epdsim.sut.vllm.worked import WorkedVllm

RUNNER_MODES = tuple(mode for mode in MODES if mode not in {*LATER_MODES, *ENCODER_MODES})
"""Not compared are sessions and resets with all that runs, as a play does not tell which outputs those keep; EC connectors that
defer or lose items, whose loads are not a step's own; encoder-decoder and encoder-only engines; loads between steps; and drafts."""


class RunningEngine(WorkedVllm):
    """The real scheduler with a real runner behind it.

    Attributes:
        states: Of the runner, one for each step.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide) -> None:
        super().__init__(workload, far)
        self.states: list[State] = []

    def drives_on(self) -> bool:
        """Always: what a lost one holds is compared too."""
        return True

    def took(self, state: State) -> None:
        """The runner has taken a step."""
        super().took(state)
        self.states.append({name: state[name] for name in COMPARED})


class ModelRunning(WorkedModel):
    """The model's scheduler with the model's worker behind it.

    Attributes:
        states: Of the worker, one for each step.
        violations: What the worker said.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide, dialect: Dialect | None = None) -> None:
        super().__init__(workload, far, dialect)
        self.states: list[State] = []
        self.violations: list[str] = []

    def took(self, plan: StepPlan, done: WorkerStep) -> None:
        """The worker has taken a step."""
        super().took(plan, done)
        self.violations += [one.property_id for one in done.violations]
        self.states.append(model_state(self.worker, plan, done))


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
    plays: list[Play[Any]] = []

    def make_play(workload: RecordedWorkload) -> Play[Any]:
        plays.append(Play(workload, RunningEngine))
        return plays[-1]

    workload = record_workload(script, make_play)
    play = Play(workload, lambda given, far: ModelRunning(given, far, dialect))
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
