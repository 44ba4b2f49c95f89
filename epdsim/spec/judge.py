"""Judging: events in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from epdsim.events import EngineStarted, Event
from epdsim.spec.engine_state import STATE_EVENTS, EngineState
from epdsim.spec.property import BEYOND, Broken, Finding, Monitor, Property, Reached, Verdict

_Monitors = Sequence[tuple[Verdict, Monitor, frozenset[str]]]
_Readers = tuple[bool, _Monitors, _Monitors]
"""Of a kind of events: whether the state of engines follows from it, who reads it, and who of these is asked without media."""


@dataclass(slots=True)
class _Sender:
    """An instance that sends events, since it began.

    Attributes:
        monitors: All that judge it.
        engine: Its state.
        readers: Of those kinds of events that it has sent.
    """

    monitors: Sequence[tuple[Property, Verdict, Monitor]]
    engine: EngineState = field(default_factory=EngineState)
    readers: dict[type[Event], _Readers] = field(default_factory=dict[type[Event], _Readers])

    def find_readers(self, kind: type[Event]) -> _Readers:
        reading = [one for one in self.monitors if not one[0].reads or kind in one[0].reads]
        told = [(one, (verdict, monitor, _copes(one))) for one, verdict, monitor in reading]
        readers = [reader for _, reader in told]
        readers_of_text = [reader for one, reader in told if not one.of_media]
        found = self.readers[kind] = kind in STATE_EVENTS, readers, readers_of_text
        return found


def _copes(one: Property) -> frozenset[str]:
    """With what: statements about a whole fleet hear all that its engines say, else they would miss a part of the story."""
    return one.copes if one.level == "engine" else BEYOND


class Judge:
    """Folds the monitors of some properties over one run; it is a sink of events.

    Events are looked at as they come and not kept, and each goes to those monitors only that read its kind. What is said
    of one engine is judged by monitors of its own, and by new ones when it begins again: what it held before it was lost is gone.

    Args:
        properties: Those without a monitor are passed over.

    Attributes:
        num_events: Seen so far.
    """

    def __init__(self, properties: Iterable[Property]) -> None:
        self._judged = [one for one in properties if one.monitor is not None]
        self._verdicts = {one.id: Verdict(one.id) for one in self._judged}
        self._of_the_run: Mapping[str, Monitor] = {
            one.id: one.monitor() for one in self._judged if one.monitor is not None and one.level != "engine"
        }
        self._senders: dict[str, _Sender] = {}
        self.num_events = 0

    def __call__(self, event: Event) -> None:
        """Take one event."""
        sender = self._senders.get(event.instance)
        if sender is None or event.__class__ is EngineStarted:
            sender = self._senders[event.instance] = _Sender(list(self._monitors()))
        moves_state, readers, readers_of_text = sender.readers.get(event.__class__) or sender.find_readers(
            event.__class__
        )
        if moves_state or readers:
            engine = sender.engine
            if moves_state:
                engine.take(event)
            for verdict, monitor, copes in readers if engine.has_media else readers_of_text:
                if engine.beyond and not copes.issuperset(engine.beyond):
                    continue
                for finding in monitor(event, engine):
                    if finding.__class__ is Reached:
                        verdict.num_reached += 1
                    else:
                        self._note(verdict, finding)
        self.num_events += 1

    def _monitors(self) -> Iterable[tuple[Property, Verdict, Monitor]]:
        """Those of an instance that begins."""
        for one in self._judged:
            assert one.monitor is not None, "those without are passed over"
            yield one, self._verdicts[one.id], self._of_the_run.get(one.id) or one.monitor()

    def _note(self, verdict: Verdict, finding: Finding) -> None:
        assert isinstance(finding, Broken), "there are two kinds of findings"
        verdict.num_broken += 1
        if verdict.first is None:
            verdict.first, verdict.at = finding, self.num_events

    def verdicts(self) -> dict[str, Verdict]:
        """What is known so far, by property."""
        return self._verdicts


def judge(events: Iterable[Event], properties: Iterable[Property]) -> dict[str, Verdict]:
    """Judge a whole run."""
    judging = Judge(properties)
    for event in events:
        judging(event)
    return judging.verdicts()
