"""Judging: events in, verdicts out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from epdsim.events import Event
from epdsim.spec.engine_state import STATE_EVENTS, EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached, Verdict

_Monitors = Sequence[tuple[Verdict, Monitor, frozenset[str]]]
_Readers = tuple[bool, _Monitors, _Monitors]
"""Of a kind of events: whether the state of engines follows from it, who reads it, and who of these is asked without media."""


class Judge:
    """Folds the monitors of some properties over one run; it is a sink of events.

    Events are looked at as they come and not kept, and each goes to those monitors only that read its kind.

    Args:
        properties: Those without a monitor are passed over.

    Attributes:
        num_events: Seen so far.
    """

    def __init__(self, properties: Iterable[Property]) -> None:
        self._judged = [(one, Verdict(one.id), one.monitor()) for one in properties if one.monitor is not None]
        self._readers: dict[type[Event], _Readers] = {}
        self._engines: defaultdict[str, EngineState] = defaultdict(EngineState)
        self.num_events = 0

    def __call__(self, event: Event) -> None:
        """Take one event."""
        found = self._readers.get(event.__class__) or self._find_readers(event.__class__)
        moves_state, readers, readers_of_text = found
        if moves_state or readers:
            engine = self._engines[event.instance]
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

    def _find_readers(self, kind: type[Event]) -> _Readers:
        reading = [one for one in self._judged if not one[0].reads or kind in one[0].reads]
        readers = [(verdict, monitor, one.copes) for one, verdict, monitor in reading]
        readers_of_text = [(verdict, monitor, one.copes) for one, verdict, monitor in reading if not one.of_media]
        found = self._readers[kind] = kind in STATE_EVENTS, readers, readers_of_text
        return found

    def _note(self, verdict: Verdict, finding: Finding) -> None:
        assert isinstance(finding, Broken), "there are two kinds of findings"
        verdict.num_broken += 1
        if verdict.first is None:
            verdict.first, verdict.at = finding, self.num_events

    def verdicts(self) -> dict[str, Verdict]:
        """What is known so far, by property."""
        return {verdict.property_id: verdict for _, verdict, _ in self._judged}


def judge(events: Iterable[Event], properties: Iterable[Property]) -> dict[str, Verdict]:
    """Judge a whole run."""
    judging = Judge(properties)
    for event in events:
        judging(event)
    return judging.verdicts()
