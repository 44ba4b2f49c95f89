"""The model beside a real scheduler: the same random workloads, compared step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.sut.schedule_modes import default_modes
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_recorder import record_workload
from epdsim.sut.schedule_recording import Difference, replay_workload, tell_difference
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workloads import schedule_workload
from epdsim.sut.vllm import installed_version, vllm_play

Progress = Callable[[int, int], None]


@record
class LiveSystem:
    """A real scheduler in this process.

    Attributes:
        name: As on the command line.
        release: Its version.
        play: Plays a workload to it.
    """

    name: str
    release: str
    play: Callable[[RecordedWorkload], Play[Any]]


@record
class ExplainedDifference:
    """A difference that is known, with the reason why the model does not follow.

    Attributes:
        name: In reports.
        why: In a sentence, with its source.
        covers: Whether a difference is this one.
    """

    name: str
    why: str
    covers: Callable[[RecordedWorkload, Difference], bool]


EXPLAINED: tuple[ExplainedDifference, ...] = ()
"""The list; empty, for no difference is known that should stay."""


DIED = "the release died of an assertion of its own"
"""What `LiveReport.explained` says of a workload that is equal up to there, and has no more to compare."""


@dataclass(slots=True)
class LiveRow:
    """One mode.

    Attributes:
        mode: Its name.
        workloads: Compared.
        steps: Compared, up to the first difference of each workload.
        preemptions: How many the release made in them: a workload without any says little.
        differences: Workloads with a difference that nothing explains.
        explained: Workloads with a listed one, or in which the release died after equal steps.
    """

    mode: str
    workloads: int = 0
    steps: int = 0
    preemptions: int = 0
    differences: int = 0
    explained: int = 0


@dataclass(slots=True)
class LiveReport:
    """The result of a comparison; `first_difference` tells the first unexplained one."""

    system: str
    seeds: range
    rows: list[LiveRow]
    first_difference: tuple[str, ...] = ()
    explained: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_equal(self) -> bool:
        """Whether something was compared and every difference is explained."""
        return any(row.steps for row in self.rows) and not any(row.differences for row in self.rows)


def live_system(name: str) -> LiveSystem:
    """A real scheduler by name.

    Raises:
        InputError: No such system, or it is not installed.
    """
    if name != "vllm":
        raise InputError(f"live system {name!r}", "the only one is vllm")
    return LiveSystem(name, installed_version(), vllm_play)


def record_live(
    system: LiveSystem, modes: Sequence[str] | None, seeds: range, progress: Progress | None = None
) -> Iterator[RecordedWorkload]:
    """Recordings of random workloads, mode by mode within a seed.

    Raises:
        InputError: A mode is unknown.
    """
    modes = default_modes(system.release) if modes is None else modes
    total = len(modes) * len(seeds)
    for done, (seed, mode) in enumerate((seed, mode) for seed in seeds for mode in modes):
        if progress is not None:
            progress(done, total)
        yield record_workload(schedule_workload(mode, seed, system.release), system.play)


def compare_live(
    system: LiveSystem,
    modes: Sequence[str] | None,
    seeds: range,
    explained: Sequence[ExplainedDifference] = EXPLAINED,
    progress: Progress | None = None,
) -> LiveReport:
    """Compare the model in the dialect of the release with the release.

    Args:
        system: The release.
        modes: Of `schedule_modes`; None for those that the release is compared in.
        seeds: Each gives a workload of every mode.
        explained: Differences that are known.
        progress: Told the number of workloads done and in all.

    Raises:
        InputError: A mode is unknown, or the model has no dialect of the release.
    """
    modes = default_modes(system.release) if modes is None else modes
    rows = {mode: LiveRow(mode) for mode in modes}
    report = LiveReport(f"{system.name} {system.release}", seeds, list(rows.values()))
    for workload in record_live(system, modes, seeds, progress):
        row = rows[workload.config.mode]
        equal, difference = replay_workload(workload)
        row.workloads += 1
        row.steps += equal
        row.preemptions += sum(len(step["preempted"]) for step in workload.steps[:equal])
        if difference is None and not workload.died:
            continue
        if difference is None:
            row.explained += 1
            report.explained[DIED] = report.explained.get(DIED, 0) + 1
            continue
        known = next((one for one in explained if one.covers(workload, difference)), None)
        if known is not None:
            row.explained += 1
            report.explained[known.name] = report.explained.get(known.name, 0) + 1
            continue
        row.differences += 1
        if not report.first_difference:
            report.first_difference = (*tell_difference(workload, difference), *_remedy(system, workload))
    return report


def _remedy(system: LiveSystem, workload: RecordedWorkload) -> tuple[str, ...]:
    config = workload.config
    seeds = f"{config.seed}:{config.seed + 1}"
    return (
        f"to keep it: epdsim record --live {system.name} --seeds {seeds} --modes {config.mode} -o difference.jsonl",
    )
