"""Hunting: many cases put to one system, all properties judged at once, and the smallest case kept for each that is violated.

An exploration runs once, over all its cases or until its time is over. What it found is then made small (`reduction`), which works
on the case alone and so costs the same whoever drew it.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from epdsim.core.records import record
from epdsim.events import EngineStarted, Event
from epdsim.spec import JUDGED, Judge, Property, Verdict
from epdsim.sut.cases import Case
from epdsim.sut.probe import events_of
from epdsim.sut.schedule_modes import default_modes
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.blame import rules_behind
from epdsim.testing.failures import Found
from epdsim.testing.reduction import Effort, reduced, size_of

_CHECKS: list[HealthCheck] = [*HealthCheck]  # pyright: ignore[reportAssignmentType]  (its metaclass hides the members)
_SHARE_OF_EXPLORATION, _SHARE_OF_REDUCTION = 0.5, 0.2
"""What one of them may take of the time that is left."""
_LEAST_SECONDS = 1.0
"""What each may take even when no time is left, so that none says nothing."""
MOST_ATTEMPTS = 400
"""Cases that a reduction tries."""
MOST_ALIKE, MOST_STORIES = 3, 8
"""Violations of a property that are kept where the same is wrong, and stories of it that are told."""


class TimeIsOverError(BaseException):
    """An exploration has had its time; no failure of a case, which is why Hypothesis lets it through."""


@dataclass(slots=True)
class Collector:
    """Takes runs, judges them, and keeps the smallest one that violates each property.

    Attributes:
        properties: To judge.
        ends_at: When to stop, on `time.monotonic`'s clock; None for never.
        verdicts: So far.
        found: The smallest violations so far, by property and then by what is wrong in them.
        num_cases: Taken so far.
        is_cut: Whether it stopped before all cases had come.
    """

    properties: Sequence[Property]
    ends_at: float | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])
    found: dict[str, dict[str, list[Found]]] = field(default_factory=dict[str, dict[str, list[Found]]])
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
            if verdict.num_broken:
                self._keep(Found(name, case, events, verdict))
            self.verdicts.setdefault(name, Verdict(name)).add(verdict)
        if self.ends_at is not None and time.monotonic() > self.ends_at:
            self.is_cut = True
            raise TimeIsOverError

    def _keep(self, found: Found) -> None:
        alike = self.found.setdefault(found.property_id, {}).setdefault(kind_of(found), [])
        alike.append(found)
        alike.sort(key=lambda one: size_of(one.case))
        del alike[MOST_ALIKE:]


def kind_of(found: Found) -> str:
    """What is wrong in a violation, in words without names and numbers, and what is beyond the engine's events."""
    assert found.verdict.first is not None, "it is violated"
    told = re.sub(r"\b([a-z]+-)?[a-z]?\d+\b", "N", found.verdict.first.told)
    told = re.sub(r"N(, N)+", "N", re.sub(r"\b(image|audio|video)\b", "item", told))
    return f"{told} {' '.join(beyond_of(found))}"


def beyond_of(found: Found) -> Sequence[str]:
    """What befell the engine that events do not tell in full."""
    return next((event.beyond for event in found.events if isinstance(event, EngineStarted)), ())


Run = Callable[[Collector, SystemUnderTest, int, int], None]
"""Puts cases to a system and hands each run to the collector: with a seed, and as many cases as the budget says."""


@record
class Exploration:
    """A way to come by cases.

    Attributes:
        name: For messages; unique in a session.
        level: What the system must have: `"protocol"`, `"engine"` or `"caches"`, as `SystemUnderTest` names it.
        run: Goes through the cases.
        weight: Share of the budget.
        mode: A mode of the live comparison that the system's release must be compared in; empty for none.
    """

    name: str
    level: str
    run: Run
    weight: float = 1.0
    mode: str = ""


def drawn(
    name: str, strategy: st.SearchStrategy[Case], *, level: str, weight: float = 1.0, mode: str = ""
) -> Exploration:
    """Cases that Hypothesis draws.

    Args:
        name: For messages.
        strategy: Of cases.
        level: What the system must have.
        weight: Share of the budget.
        mode: As of `Exploration`.
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

    return Exploration(name, level, run, weight, mode)


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


class Story(NamedTuple):
    """A violation made small.

    Attributes:
        found: The violation.
        exploration: Where it was found.
        rules: Rules of the release that it hangs on, as `rules_behind` has it.
    """

    found: Found
    exploration: str
    rules: tuple[str, ...] | None


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
        """Whether the system has what the exploration's cases are put to, and is of a release that they are for."""
        if exploration.mode and exploration.mode not in default_modes(self.system.release):
            return False
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
            except Exception:
                del self._explored[exploration.name]  # what it came to says nothing
                raise
        return known

    def smallest(self, exploration: Exploration, property_id: str) -> Found:
        """A run that violates a property: the smallest that an exploration came by, made smaller.

        Raises:
            KeyError: The exploration found no violation of it.
        """
        found = min(self._candidates(exploration, property_id), key=lambda one: size_of(one.case))
        return self._reduced(found)

    def stories(self, explorations: Sequence[Exploration], property_id: str) -> list[Story]:
        """The small runs that violate a property, one for each rule of the release that they hang on or thing that is wrong.

        What the explorations found is looked at from the smallest on, until enough stories are told or there is no time.
        """
        candidates = [
            (one, exploration.name)
            for exploration in explorations
            for one in self._candidates(exploration, property_id)
        ]
        candidates.sort(key=lambda one: size_of(one[0].case))
        stories: dict[Hashable, Story] = {}
        seen: set[Hashable] = set()
        for found, name in candidates:
            if stories and (len(stories) == MOST_STORIES or self._is_over()):
                break
            if self._key(found) in seen:
                continue
            small = self._reduced(found)
            rules = self._rules_behind(small)
            key = rules or kind_of(small)
            seen |= {self._key(found), key}
            if key not in stories or size_of(small.case) < size_of(stories[key].found.case):
                stories[key] = Story(small, name, rules)
        return list(stories.values())

    def _candidates(self, exploration: Exploration, property_id: str) -> list[Found]:
        kinds = self.explored(exploration).found.get(property_id, {})
        return [one for alike in kinds.values() for one in alike]

    def _key(self, found: Found) -> Hashable:
        return self._rules_behind(found) or kind_of(found)

    def _rules_behind(self, found: Found) -> tuple[str, ...] | None:
        return rules_behind(found.case, self._property(found.property_id), self.system)

    def _reduced(self, found: Found) -> Found:
        self._progress(f"making a story of {found.property_id} short")
        effort = Effort(MOST_ATTEMPTS, self._until(_SHARE_OF_REDUCTION))
        return reduced(found, self._property(found.property_id), self.system, effort)

    def _property(self, property_id: str) -> Property:
        return next(one for one in self._properties if one.id == property_id)

    def _is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() > self._ends_at

    def _until(self, share: float) -> float | None:
        """When something ends that may take a share of the time that is left."""
        if self._ends_at is None:
            return None
        now = time.monotonic()
        return now + max(_LEAST_SECONDS, share * (self._ends_at - now))
