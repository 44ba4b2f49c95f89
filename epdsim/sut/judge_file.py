"""Judging files: events of whatever source, or recorded schedules, which are told as events first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.events import EngineStarted, Event, read_events, read_header
from epdsim.spec import Judge, Property, Verdict, tell_story, timeline
from epdsim.sut.schedule_records import read_schedules
from epdsim.sut.told import tell_recorded


@dataclass(slots=True)
class JudgedFile:
    """What a file says of the properties, and how much of it was understood: silence must not be taken for success.

    Attributes:
        path: As the user gave it.
        num_runs: Runs in it; in a file of events a further one begins where an engine starts and time begins anew.
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
    for name, events in _runs(path, judged):
        judging = Judge(properties)
        latest: dict[str, float] = {}
        for event in events:
            judging(event)
            judged.num_out_of_order += event.time_ms < latest.get(event.instance, event.time_ms)
            latest[event.instance] = max(event.time_ms, latest.get(event.instance, event.time_ms))
        judged.num_runs += 1
        judged.num_events += len(events)
        for one, verdict in judging.verdicts().items():
            judged.verdicts.setdefault(one, Verdict(one)).add(verdict)
            if verdict.first is not None and one not in judged.stories:
                judged.stories[one] = [*name, *tell_story(events, verdict), "", *timeline(events, verdict.at)]
    return judged


def _runs(path: Path, judged: JudgedFile) -> Iterator[tuple[list[str], list[Event]]]:
    """Each run of a file with the lines that say which one it is."""
    if path.is_fifo():
        raise InputError(
            f"{str(path)!r}", "it is a pipe, and what is judged is read twice", "write a file, and name that"
        )
    header = read_header(path)
    if {"config", "requests", "steps"} <= set(header):
        for line, workload in read_schedules(path):
            events: list[Event] = []
            tell_recorded(workload, events.append)
            yield [f"line {line}: mode {workload.config.mode}, seed {workload.config.seed}"], events
    elif "format" in header:
        yield from (([], events) for events in _split(read_events(path, judged.unknown)))
    else:
        raise InputError(
            f"file {str(path)!r}",
            "it is neither an event file nor a recording of schedules",
            "write events with --events, or record with epdsim record",
        )


def _split(events: Iterable[Event]) -> Iterator[list[Event]]:
    """The runs of a file of events: a scenario with several points writes one behind the other."""
    run: list[Event] = []
    latest_ms = 0.0
    for event in events:
        if isinstance(event, EngineStarted) and event.time_ms < latest_ms:
            yield run
            run, latest_ms = [], 0.0
        latest_ms = max(latest_ms, event.time_ms)
        run.append(event)
    yield run
