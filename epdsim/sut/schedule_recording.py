"""Replay of schedules recorded from a real vLLM: the same workload through the model, compared field by field.

A recording is NDJSON, plain or gzipped, one workload a line: settings, requests with their arrival steps, aborts, and what the
scheduler decided in each step. The replay feeds the recorded tokens back and compares every recorded field. It reads one line
at a time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.rules import Dialect
from epdsim.sut.replay import ReplayCount, ReplayReport
from epdsim.sut.schedule_model import model_play
from epdsim.sut.schedule_records import RecordedWorkload, read_schedules

STORY_STEPS = 3
"""Steps before the first difference that the report tells."""


_ABSENT = "(absent)"


class Difference(msgspec.Struct, frozen=True):
    """The first field of a workload that is not equal."""

    step: int
    field: str
    recorded: object
    ours: object


def replay_schedules(path: Path) -> ReplayReport:
    """Replay a recording of schedules.

    Args:
        path: A `.jsonl` file, gzipped when its name ends in `.gz`.

    Raises:
        InputError: The file cannot be read, or a line of it is not a recorded workload.
    """
    num_workloads = num_equal = num_steps = num_steps_equal = 0
    releases: dict[str, None] = {}
    first: tuple[str, ...] = ()
    for line, workload in read_schedules(path):
        releases[workload.config.vllm] = None
        num_workloads += 1
        num_steps += len(workload.steps)
        try:
            equal, difference = replay_workload(workload)
        except InputError as error:
            raise error.at(f"{path}, line {line}") from error
        num_steps_equal += equal
        num_equal += difference is None
        if difference is not None and not first:
            first = tell_difference(workload, difference, f"line {line}: ")
    if not num_workloads:
        raise InputError(str(path), "it holds no workload")
    return ReplayReport(
        recording=str(path),
        release=" and ".join(f"vllm {release}" for release in releases),
        counts=(ReplayCount("workloads", num_equal, num_workloads), ReplayCount("steps", num_steps_equal, num_steps)),
        first_difference=first,
    )


def replay_workload(workload: RecordedWorkload, dialect: Dialect | None = None) -> tuple[int, Difference | None]:
    """Replay one workload: the number of equal steps up to the first difference, and that.

    Args:
        workload: As it was recorded.
        dialect: Rules in force; by default those of the recorded release.
    """
    play = model_play(workload, dialect)
    for equal, step in enumerate(workload.steps):
        sampled = step.get("sampled")
        if not isinstance(sampled, dict):
            raise InputError(f"step {equal}", "it does not say what was sampled")
        proposed = step.get("num_draft_tokens") or {}
        ours = play.step(
            equal,
            lambda name, _, sampled=sampled: sampled.get(name) or ["a token"],
            lambda name, proposed=proposed: proposed.get(name, 0),
        )
        for field in {**step, **ours}:
            if not _same(step.get(field, _ABSENT), ours.get(field, _ABSENT)):
                return equal, Difference(equal, field, step.get(field, _ABSENT), ours.get(field, _ABSENT))
    return len(workload.steps), None


def tell_difference(workload: RecordedWorkload, difference: Difference, place: str = "") -> tuple[str, ...]:
    """A difference in words: where, what, both values, and the steps before it; `place` comes first."""
    config = workload.config
    story = [
        f"  step {step['step']}: {step.get('num_scheduled_tokens')} tokens, {step.get('free_blocks')} free blocks, "
        f"running {step.get('running')}, waiting {step.get('waiting')}, preempted {step.get('preempted')}"
        for step in workload.steps[max(0, difference.step - STORY_STEPS) : difference.step]
    ]
    return (
        f"{place}mode {config.mode}, seed {config.seed}, step {difference.step}, field {difference.field}",
        f"  recorded: {difference.recorded}",
        f"  model:    {difference.ours}",
        "the recorded steps before it:" if story else "it is the first step",
        *story,
    )


def _same(recorded: object, ours: object) -> bool:
    """Whether two fields are equal; the order of keys is a decision too."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        return list(recorded.items()) == list(ours.items())
    return recorded == ours
