"""Judging: events in, verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epdsim.events import EngineStarted, Event
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import BEYOND, Broken, Finding, Monitor, Property, Reached, Take, Verdict

_Follow = Callable[[Any], None]
_Readers = list[tuple[Verdict, Take]]
_Heard = tuple[_Follow | None, _Readers, _Readers]
"""Of a kind of events: how an engine's state follows from it, who reads it, and who of these as long as no media have come."""


@dataclass(slots=True)
class _Sender:
    """An instance that sends events, since it began.

    Attributes:
        monitors: All that judge it.
        engine: Its state.
        follow: By kind of event, how its state follows from it.
        heard: Of those kinds of events that it has sent.
    """

    monitors: Sequence[tuple[Property, Verdict, Monitor]]
    engine: EngineState
    follow: Mapping[type[Event], _Follow]
    heard: dict[type[Event], _Heard] = field(default_factory=dict[type[Event], _Heard])

    def hear(self, kind: type[Event]) -> _Heard:
        """Who takes a kind that it has not sent before."""
        readers: _Readers = []
        readers_of_text: _Readers = []
        for one, verdict, monitor in self.monitors:
            take = monitor.get(kind) or monitor.get(Event)
            if take is not None:
                readers.append((verdict, take))
                if not one.of_media:
                    readers_of_text.append((verdict, take))
        heard = self.heard[kind] = self.follow.get(kind), readers, readers_of_text
        return heard


def _copes(one: Property, beyond: Sequence[str]) -> bool:
    """Whether an engine is judged by it of which so much is beyond its events.

    Statements about a whole fleet hear all that its engines say, else they would miss a part of the story.
    """
    return (one.copes if one.level == "engine" else BEYOND).issuperset(beyond)


class Judge:
    """Folds the monitors of some properties over one run; it is a sink of events.

    Events are looked at as they come and not kept, and each goes to those monitors only that take its kind. What is said
    of one engine is judged by monitors of its own, and by new ones when it begins again: what it held before it was lost is gone.

    Args:
        properties: Those without a monitor are passed over.

    Attributes:
        num_events: Seen so far.
    """

    def __init__(self, properties: Iterable[Property]) -> None:
        self._judged = [one for one in properties if one.monitor is not None]
        self._verdicts = {one.id: Verdict(one.id) for one in self._judged}
        self._of_the_run = {one.id: one.make_monitor() for one in self._judged if one.level != "engine"}
        self._senders: dict[str, _Sender] = {}
        self.num_events = 0

    def __call__(self, event: Event) -> None:
        """Take one event."""
        kind = event.__class__
        sender = self._senders.get(event.instance)
        if sender is None or kind is EngineStarted:
            sender = self._begin(event)
        engine = sender.engine
        follow, readers, readers_of_text = sender.heard.get(kind) or sender.hear(kind)
        if follow is not None:
            follow(event)
        for verdict, take in readers if engine.has_media else readers_of_text:
            found = take(event, engine)
            if found is not None:
                for finding in found:
                    self._note(verdict, finding)
        self.num_events += 1

    def _begin(self, event: Event) -> _Sender:
        """An instance that says its first word, or begins again."""
        beyond = event.beyond if isinstance(event, EngineStarted) else ()
        engine = EngineState()
        monitors = [
            (one, self._verdicts[one.id], self._of_the_run.get(one.id) or one.make_monitor())
            for one in self._judged
            if _copes(one, beyond)
        ]
        sender = self._senders[event.instance] = _Sender(monitors, engine, engine.follow_by_kind())
        return sender

    def _note(self, verdict: Verdict, finding: Finding) -> None:
        if isinstance(finding, Reached):
            verdict.num_reached += 1
            return
        assert isinstance(finding, Broken), "there are two kinds of findings"
        verdict.num_broken += 1
        if verdict.first is None:
            verdict.first, verdict.at = finding, self.num_events

    def verdicts(self) -> dict[str, Verdict]:
        """What is known so far, by property."""
        return self._verdicts


class JudgeInBatches(Judge):
    """A judge of long runs, who looks at many events at a time.

    Monitors and their books are warm then, which between two events of a simulation they are not: that is a third of their time.

    Args:
        properties: As of `Judge`.
        size: Events of a batch.
    """

    def __init__(self, properties: Iterable[Property], size: int = 128) -> None:
        super().__init__(properties)
        self._size = size
        self._pending: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._pending.append(event)
        if len(self._pending) >= self._size:
            self._judge_pending()

    def _judge_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event in pending:
            super().__call__(event)

    def verdicts(self) -> dict[str, Verdict]:
        """What is known of all events so far, by property."""
        self._judge_pending()
        return super().verdicts()


def judge(events: Iterable[Event], properties: Iterable[Property]) -> dict[str, Verdict]:
    """Judge a whole run."""
    judging = Judge(properties)
    for event in events:
        judging(event)
    return judging.verdicts()
