"""Judging: events in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterable

from epdsim.events import Event
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Monitor, Property, Verdict


class Judge:
    """Folds the monitors of some properties over one run; it is a sink of events.

    Args:
        properties: Those without a monitor are passed over.

    Attributes:
        num_events: Seen so far.
    """

    def __init__(self, properties: Iterable[Property]) -> None:
        self._monitors: list[tuple[Verdict, Monitor]] = [
            (Verdict(one.id), one.monitor()) for one in properties if one.monitor is not None
        ]
        self._engines: dict[str, EngineState] = {}
        self.num_events = 0

    def __call__(self, event: Event) -> None:
        """Take one event."""
        engine = self._engines.get(event.instance)
        if engine is None:
            engine = self._engines[event.instance] = EngineState()
        engine.take(event)
        for verdict, monitor in self._monitors:
            for finding in monitor(event, engine):
                if isinstance(finding, Broken):
                    verdict.num_broken += 1
                    if verdict.first is None:
                        verdict.first, verdict.at = finding, self.num_events
                else:
                    verdict.num_reached += 1
        self.num_events += 1

    def verdicts(self) -> dict[str, Verdict]:
        """What is known so far, by property."""
        return {verdict.property_id: verdict for verdict, _ in self._monitors}


def judge(events: Iterable[Event], properties: Iterable[Property]) -> dict[str, Verdict]:
    """Judge a whole run."""
    judging = Judge(properties)
    for event in events:
        judging(event)
    return judging.verdicts()
