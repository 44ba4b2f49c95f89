"""Hunting: many cases put to one system, all properties judged at once, and the smallest case kept for each that is violated.

An exploration runs once, over all its cases or until its time is over. What it found is then made small (`reduction`), which works
on the case alone and so costs the same whoever drew it.
"""

from __future__ import annotations

import time
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
from epdsim.testing.reduction import Effort, reduced, size_of

_CHECKS: list[HealthCheck] = [*HealthCheck]  # pyright: ignore[reportAssignmentType]  (its metaclass hides the members)
_SHARE_OF_EXPLORATION, _SHARE_OF_REDUCTION = 0.5, 0.2
"""What one of them may take of the time that is left."""
_LEAST_SECONDS = 1.0
"""What each may take even when no time is left, so that none says nothing."""
MOST_ATTEMPTS = 400
"""Cases that a reduction tries."""


class TimeIsOverError(BaseException):
    """An exploration has had its time; no failure of a case, which is why Hypothesis lets it through."""


@dataclass(slots=True)
class Collector:
    """Takes runs, judges them, and keeps the smallest one that violates each property.

    Attributes:
        properties: To judge.
        ends_at: When to stop, on `time.monotonic`'s clock; None for never.
        verdicts: So far.
        found: The smallest violation so far, by property.
        num_cases: Taken so far.
        is_cut: Whether it stopped before all cases had come.
    """

    properties: Sequence[Property]
    ends_at: float | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    found: dict[str, Found] = field(default_factory=dict[str, Found])
    num_cases: int = 0
    is_cut: bool = False

    def take(self, case: Case, events: Sequence[Event]) -> None:
        """Judge a run.

        Raises:
            TimeIsOverError: There is no time for another one.
        """
        judging = Judge(self.properties)
        for event in events:
            judging(event)
        self.num_cases += 1
        for name, verdict in judging.verdicts().items():
            known = self.found.get(name)
            if verdict.num_broken and (known is None or size_of(case) < size_of(known.case)):
                self.found[name] = Found(name, case, events, verdict)
            self.verdicts.setdefault(name, Verdict(name)).add(verdict)
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            self.is_cut = True
            raise TimeIsOverError


Run = Callable[[Collector, SystemUnderTest, int, int], None]
"""Puts cases to a system and hands each run to the collector: with a seed, and as many cases as the budget says."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """A way to come by cases.

    Attributes:
        name: For messages; unique in a session.
        level: What the system must have: `"protocol"`, `"engine"` or `"caches"`, as `SystemUnderTest` names it.
        run: Goes through the cases.
        weight: Share of the budget.
    """

    name: str
    level: str
    run: Run
    weight: float = 1.0


def drawn(name: str, strategy: st.SearchStrategy[Case], *, level: str, weight: float = 1.0) -> Exploration:
    """Cases that Hypothesis draws.

    Args:
        name: For messages.
        strategy: Of cases.
        level: What the system must have.
        weight: Share of the budget.
    """

    def run(collector: Collector, system: SystemUnderTest, number: int, budget: int) -> None:
        @seed(number)
        @quiet_settings(budget)
        @given(strategy)
        def explore(case: Case) -> None:
            collector.take(case, events_of(case, system))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            explore()

    return Exploration(name, level, run, weight)


def listed(name: str, cases: Callable[[], Iterable[Case]], *, level: str) -> Exploration:
    """All cases of an enumeration, whatever the budget.

    Args:
        name: For messages.
        cases: Makes them.
        level: What the system must have.
    """

    def run(collector: Collector, system: SystemUnderTest, _seed: int, _budget: int) -> None:
        for case in cases():
            collector.take(case, events_of(case, system))

    return Exploration(name, level, run)


def quiet_settings(budget: int) -> settings:
    """Hypothesis's settings of a hunt: it draws and does no more; nothing is kept, nothing is timed."""
    return settings(
        max_examples=budget,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=_CHECKS,
        print_blob=False,
    )


Progress = Callable[[str], None]
"""Told in few words what is done just now."""


class Hunter:
    """Explores one system, each exploration once.

    Args:
        system: Under test.
        number: Seed of all explorations.
        budget: Cases of an exploration of weight 1.
        properties: To judge.
        seconds: For all explorations and reductions together; None for as long as it takes, where equal seeds find equal things.
        progress: Told what is done.
    """

    def __init__(
        self,
        system: SystemUnderTest,
        number: int = 0,
        budget: int = 150,
        properties: Sequence[Property] = JUDGED,
        seconds: float | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self.system, self.seed, self.budget, self._properties = system, number, budget, properties
        self._ends_at = None if seconds is None else time.monotonic() + seconds
        self._progress = progress
        self._explored: dict[str, Collector] = {}

    def can(self, exploration: Exploration) -> bool:
        """Whether the system has what the exploration's cases are put to."""
        return getattr(self.system, exploration.level) is not None

    def explored(self, exploration: Exploration) -> Collector:
        """The verdicts of an exploration."""
        known = self._explored.get(exploration.name)
        if known is None:
            self._progress(f"exploring {exploration.name}")
            known = Collector(self._properties, self._until(_SHARE_OF_EXPLORATION))
            self._explored[exploration.name] = known
            try:
                exploration.run(known, self.system, self.seed, max(1, round(self.budget * exploration.weight)))
            except TimeIsOverError:
                self._progress(f"{exploration.name}: stopped after {known.num_cases} cases, for want of time")
        return known

    def smallest(self, exploration: Exploration, property_id: str) -> Found:
        """A run that violates a property: the smallest that an exploration came by, made smaller.

        Raises:
            KeyError: The exploration found no violation of it.
        """
        found = self.explored(exploration).found[property_id]
        (one,) = (one for one in self._properties if one.id == property_id)
        self._progress(f"making the story of {property_id} short")
        return reduced(found, one, self.system, Effort(MOST_ATTEMPTS, self._until(_SHARE_OF_REDUCTION)))

    def _until(self, share: float) -> float | None:
        """When something ends that may take a share of the time that is left."""
        if self._ends_at is None:
            return None
        now = time.monotonic()
        return now + max(_LEAST_SECONDS, share * (self._ends_at - now))
