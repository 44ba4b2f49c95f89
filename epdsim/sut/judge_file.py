"""Judging files: events of whatever source, or recorded schedules, which are told as events first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.events import (
    EngineDied,
    EngineStarted,
    EngineStopped,
    Event,
    FleetStarted,
    InstanceLost,
    numbered_events,
    read_header,
)
from epdsim.spec import Judge, Property, Verdict, tell_story, timeline
from epdsim.sut.event_checks import check_event
from epdsim.sut.schedule_records import read_schedules
from epdsim.sut.told import tell_recorded

_BROKEN = (IndexError, KeyError, ValueError, ZeroDivisionError)
"""What comes of events that name an item, block or word that is not there; what they say of each other, no schema can check."""


@dataclass(slots=True)
class JudgedFile:
    """What a file says of the properties, and how much of it was understood: silence must not be taken for success.

    Attributes:
        path: As the user gave it.
        num_runs: Runs in it; in a file of events a further one begins where a further fleet starts, or where an engine starts
            again before the latest that it has told.
        num_events: Events read and judged.
        num_out_of_order: Events that are told later than one of the same instance that happened after them.
        unknown: Events of kinds that are not known, by kind; they are passed over.
        verdicts: By property.
        stories: By violated property, its first violation told.
    """

    path: str
    num_runs: int = 0
    num_events: int = 0
    num_out_of_order: int = 0
    unknown: dict[str, int] = field(default_factory=dict[str, int])
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    stories: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


def judge_file(path: Path, properties: Sequence[Property]) -> JudgedFile:
    """Judge an event file or a recording of schedules.

    Raises:
        InputError: It is neither, or cannot be read.
    """
    judged = JudgedFile(str(path))
    for run in _runs(path, judged):
        judging = Judge(properties)
        latest: dict[str, float] = {}
        for index, event in enumerate(run.events):
            try:
                judging(event)
            except _BROKEN as error:
                raise _misfit(path, run, index, error) from error
            judged.num_out_of_order += event.time_ms < latest.get(event.instance, event.time_ms)
            latest[event.instance] = max(event.time_ms, latest.get(event.instance, event.time_ms))
        judged.num_runs += 1
        judged.num_events += len(run.events)
        for one, verdict in judging.verdicts().items():
            judged.verdicts.setdefault(one, Verdict(one)).add(verdict)
            if verdict.first is not None and one not in judged.stories:
                try:
                    story = [*tell_story(run.events, verdict), "", *timeline(run.events, verdict.at)]
                except _BROKEN as error:
                    raise _misfit(path, run, verdict.at, error) from error
                judged.stories[one] = [*run.named(), *story]
    return judged


def _misfit(path: Path, run: _Run, index: int, error: Exception) -> InputError:
    """Of an event that names what is not there."""
    return InputError(
        f"{path}, {run.place(index)}",
        f"this {type(run.events[index]).__name__} does not fit what was told before ({type(error).__name__}: {error})",
        "its indices, sizes and words must be those of its request and engine",
    )


def _runs(path: Path, judged: JudgedFile) -> Iterator[_Run]:
    """Each run of a file."""
    if path.is_fifo():
        raise InputError(
            f"{str(path)!r}", "it is a pipe, and what is judged is read twice", "write a file, and name that"
        )
    header = read_header(path)
    if {"config", "requests", "steps"} <= set(header):
        for line, workload in read_schedules(path):
            run = _Run(f"line {line}: mode {workload.config.mode}, seed {workload.config.seed}")
            tell_recorded(workload, run.events.append)
            yield run
    elif "format" in header:
        yield from _split(path, numbered_events(path, judged.unknown))
    else:
        raise InputError(
            f"file {str(path)!r}",
            "it is neither an event file nor a recording of schedules",
            "write events with --events, or record with epdsim record",
        )


def _split(path: Path, numbered: Iterable[tuple[int, Event]]) -> Iterator[_Run]:
    """The runs of a file of events: a scenario with several points writes one behind the other."""
    run = _Run()
    for line, event in numbered:
        if run.is_over(event):
            yield run
            run = _Run()
        try:
            check_event(event)
            run.take(line, event)
        except InputError as error:
            raise error.at(f"{path}, line {line}") from error
    yield run


@dataclass(slots=True)
class _Run:
    """One run of a file as it is read.

    Attributes:
        name: Which one it is; empty in a file of events.
        events: So far.
        lines: Of the file, one for each event; none where events are told of a recording.
        has_fleet: Whether a fleet has begun.
        latest_ms: By instance, the latest time that it has told.
        alive: Engines that have begun and of whose end nothing is told.
    """

    name: str = ""
    events: list[Event] = field(default_factory=list[Event])
    lines: list[int] = field(default_factory=list[int])
    has_fleet: bool = False
    latest_ms: dict[str, float] = field(default_factory=dict[str, float])
    started: set[str] = field(default_factory=set[str])
    alive: set[str] = field(default_factory=set[str])

    def is_over(self, event: Event) -> bool:
        """Whether the next run begins: with the next fleet, or with an engine of this run that starts before its latest event."""
        match event:
            case FleetStarted():
                return self.has_fleet
            case EngineStarted():
                return event.instance in self.started and event.time_ms < self.latest_ms[event.instance]
            case _:
                return False

    def take(self, line: int, event: Event) -> None:
        """Add an event.

        Raises:
            InputError: An engine starts a second time, and nothing says that it had ended: all that is known of it would be lost.
        """
        name = event.instance
        match event:
            case FleetStarted():
                self.has_fleet = True
            case EngineStarted():
                if name in self.alive:
                    raise InputError(
                        f"{name} starts at {event.time_ms:g} ms",
                        "it has started before, and nothing says that it ended",
                        "leave one EngineStarted out, or tell EngineStopped, EngineDied or InstanceLost before it",
                    )
                self.started.add(name)
                self.alive.add(name)
            case EngineStopped() | EngineDied() | InstanceLost():
                self.alive.discard(name)
            case _:
                pass
        self.latest_ms[name] = max(event.time_ms, self.latest_ms.get(name, event.time_ms))
        self.events.append(event)
        self.lines.append(line)

    def named(self) -> list[str]:
        """The line that says which one it is, if there is one."""
        return [self.name] if self.name else []

    def place(self, index: int) -> str:
        """Where in the file an event stands."""
        return f"line {self.lines[index]}" if self.lines else self.name
