"""Hunting: many cases put to one system, all properties judged at once, and the shortest case kept for each that is violated.

An exploration runs twice at most: once over all its cases, where nothing stops it and every property is judged; and, for a property
that was violated, again over the same cases until that violation, which Hypothesis then makes as small as it can.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from epdsim.events import Event
from epdsim.spec import JUDGED, Judge, Property, Verdict
from epdsim.sut.cases import Case
from epdsim.sut.probe import events_of
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.failures import Found

_CHECKS: list[HealthCheck] = [*HealthCheck]  # pyright: ignore[reportAssignmentType]  (its metaclass hides the members)


class ViolatedError(AssertionError):
    """A property is violated; the message is its story."""


@dataclass(slots=True)
class Collector:
    """Takes runs, and either judges all of them or stops at the first that violates one property.

    Attributes:
        properties: To judge.
        target: The property to stop at; None for never.
        verdicts: So far.
        found: The last run that violated the target.
        num_cases: Taken so far.
    """

    properties: Sequence[Property]
    target: str | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    found: Found | None = None
    num_cases: int = 0

    def take(self, case: Case, events: Sequence[Event]) -> None:
        """Judge a run.

        Raises:
            ViolatedError: It violates the target.
        """
        judging = Judge([one for one in self.properties if self.target in (None, one.id)])
        for event in events:
            judging(event)
        self.num_cases += 1
        for name, verdict in judging.verdicts().items():
            if name == self.target and verdict.num_broken:
                self.found = Found(name, case, events, verdict)
                assert verdict.first is not None
                raise ViolatedError(verdict.first.told)
            self.verdicts.setdefault(name, Verdict(name)).add(verdict)


Run = Callable[[Collector, SystemUnderTest, int, int], None]
"""Puts cases to a system and hands each run to the collector: with a seed, and as many cases as the budget says."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """A way to come by cases.

    Attributes:
        name: For messages; unique in a session.
        level: `"protocol"` or `"engine"`: what the system must have.
        run: Goes through the cases.
        weight: Share of the budget.
    """

    name: str
    level: str
    run: Run
    weight: float = 1.0


def drawn(name: str, strategy: st.SearchStrategy[Case], *, level: str, weight: float = 1.0) -> Exploration:
    """Cases that Hypothesis draws, and makes small.

    Args:
        name: For messages.
        strategy: Of cases.
        level: What the system must have.
        weight: Share of the budget.
    """

    def run(collector: Collector, system: SystemUnderTest, number: int, budget: int) -> None:
        @seed(number)
        @quiet_settings(budget, shrinks=collector.target is not None)
        @given(strategy)
        def explore(case: Case) -> None:
            collector.take(case, events_of(case, system))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            explore()

    return Exploration(name, level, run, weight)


def listed(name: str, cases: Callable[[], Iterable[Case]], *, level: str) -> Exploration:
    """All cases of an enumeration, whatever the budget, smallest first.

    Args:
        name: For messages.
        cases: Makes them.
        level: What the system must have.
    """

    def run(collector: Collector, system: SystemUnderTest, _seed: int, _budget: int) -> None:
        for case in cases():
            collector.take(case, events_of(case, system))

    return Exploration(name, level, run)


def quiet_settings(budget: int, *, shrinks: bool) -> settings:
    """Hypothesis's settings of a hunt: nothing is kept, nothing is timed, and what is found is made small."""
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    return settings(
        max_examples=budget,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=_CHECKS,
        print_blob=False,
        report_multiple_bugs=False,
    )


class Hunter:
    """Explores one system, each exploration once.

    Args:
        system: Under test.
        number: Seed of all explorations.
        budget: Cases of an exploration of weight 1.
        properties: To judge.
    """

    def __init__(
        self, system: SystemUnderTest, number: int = 0, budget: int = 150, properties: Sequence[Property] = JUDGED
    ) -> None:
        self.system, self.seed, self.budget, self._properties = system, number, budget, properties
        self._explored: dict[str, Collector] = {}

    def can(self, exploration: Exploration) -> bool:
        """Whether the system has what the exploration's cases are put to."""
        return (self.system.engine if exploration.level == "engine" else self.system.protocol) is not None

    def explored(self, exploration: Exploration) -> Collector:
        """The verdicts of an exploration."""
        known = self._explored.get(exploration.name)
        if known is None:
            known = self._explored[exploration.name] = Collector(self._properties)
            exploration.run(known, self.system, self.seed, self._budget_of(exploration))
        return known

    def shortest(self, exploration: Exploration, property_id: str) -> Found:
        """The smallest run of an exploration that violates a property."""
        collector = Collector(self._properties, property_id)
        with contextlib.suppress(ViolatedError):
            exploration.run(collector, self.system, self.seed, self._budget_of(exploration))
        assert collector.found is not None, "the same cases violate again"
        return collector.found

    def _budget_of(self, exploration: Exploration) -> int:
        return max(1, round(self.budget * exploration.weight))
