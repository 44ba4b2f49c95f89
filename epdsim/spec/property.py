"""What a property is: one statement that judges every system, told by a monitor over events.

A monitor is a fold: it takes events one at a time, each kind by a function of its own, with the state of the engines that sent
them, and returns findings. `Reached` says that the property's premise held once (its *sometimes*), `Broken` that the statement did
not. A property whose premise was never reached is inconclusive, not held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from epdsim.events import Event
from epdsim.spec.engine_state import EngineState


class Outcome(StrEnum):
    """The three verdicts."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Reached:
    """The premise held: of what, in few words, for example `"r1 resumes with image-0 uncovered"`."""

    what: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """The statement did not hold.

    Attributes:
        told: What is wrong, in one sentence that names request, item and step.
        subjects: Requests and identifiers that the story is about.
    """

    told: str
    subjects: tuple[str, ...] = ()


Finding = Reached | Broken
Take = Callable[[Any, EngineState], Iterable[Finding] | None]
"""Takes an event and the state of the engine that it comes from, the event taken into account; returns what it finds, if anything.

Most events show nothing, and every run asks about each of them: where it matters, it returns None or a list, for a generator costs
as much as all the rest of a call.
"""
Monitor = Mapping[type[Event], Take]
"""By kind of event what takes it: all other kinds are kept from it. Of the kind `Event` stands what takes every kind."""

BEYOND = frozenset({"sessions", "stops", "pauses", "drafts", "transfers", "pull", "cross attention", "encoding alone"})
"""What events of an engine do not tell in full, so far."""
ALL_BUT_SESSIONS = BEYOND - {"sessions"}
"""Where prompts and items stay what they were when the request came."""

Level = Literal["protocol", "engine", "fleet", "end to end"]
SYSTEMS: Mapping[Level, tuple[str, ...]] = {
    "protocol": ("reference", "vllm"),
    "engine": ("reference", "recorded", "simulated", "vllm"),
    "fleet": ("simulated",),
    "end to end": ("simulated",),
}
"""The systems that a judged property of each level claims to have run against."""


@dataclass(frozen=True, slots=True)
class Property:
    """One statement about every system.

    Attributes:
        id: Family and matter, for example `"STRIP-AVAIL"`.
        sentence: What holds.
        why: What goes wrong for users when it does not.
        level: Where it can be judged: at calls of the protocol's functions, at one engine's steps, over a fleet, end to end.
        kind: `"always"` (no event breaks it), `"sometimes"` (some event reaches it), `"eventually"` (broken only by the end).
        evidence: Public defects that break it, and where the statement comes from.
        sometimes: The premise that a run must have reached.
        twin: The property, or the part of the statement, that says when too little is wrong too.
        monitor: Makes its monitor, one for the run, or at level `"engine"` one for each engine from its beginning on; a function
            alone takes every kind of event. None when no monitor judges it.
        of_media: Whether it speaks of media items only, so that an engine that was never sent one cannot break it.
        stands_as: Tests that judge it where runs are compared as wholes, which no monitor of one run can, as `file::test`; the last
            of them plants a bug and shows that it is caught.
        not_judged: Why nothing judges it yet; empty when something does.
        exempt: Systems that it would claim by its level and has not run against, with the reason.
        copes: What an engine may have beyond its events (`EngineStarted.beyond`) and is judged nevertheless.
    """

    id: str
    sentence: str
    why: str
    level: Level
    sometimes: str = ""
    kind: Literal["always", "sometimes", "eventually"] = "always"
    evidence: tuple[str, ...] = ()
    twin: str = ""
    monitor: Callable[[], Monitor | Take] | None = None
    of_media: bool = False
    stands_as: tuple[str, ...] = ()
    not_judged: str = ""
    exempt: Mapping[str, str] = field(default_factory=dict[str, str])
    copes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        ways = [self.monitor is not None, bool(self.stands_as), bool(self.not_judged)]
        assert sum(ways) == 1, f"{self.id} has a monitor, or tests, or says why it has neither"
        assert self.monitor is None or self.sometimes, f"{self.id} says when its premise is reached"

    def make_monitor(self) -> Monitor:
        """A new monitor, without any event taken."""
        assert self.monitor is not None, "it has one"
        made = self.monitor()
        return {Event: made} if callable(made) else made

    @property
    def family(self) -> str:
        """The part of its id before the dash."""
        return self.id.partition("-")[0]

    @property
    def judged(self) -> str:
        """What judges it, in a word."""
        return "by tests" if self.stands_as else "not yet" if self.not_judged else "yes"

    @property
    def systems(self) -> tuple[str, ...]:
        """Systems that it claims to have run against."""
        return () if self.monitor is None else tuple(one for one in SYSTEMS[self.level] if one not in self.exempt)


@dataclass(slots=True)
class Verdict:
    """What is known of a property after some events.

    Attributes:
        property_id: Whose.
        num_reached: How often the premise held.
        num_broken: How often the statement did not.
        first: The first finding against it.
        at: Number of the event at which that was found, counted from 0.
    """

    property_id: str
    num_reached: int = 0
    num_broken: int = 0
    first: Broken | None = None
    at: int = -1

    @property
    def outcome(self) -> Outcome:
        """The verdict in a word."""
        if self.num_broken:
            return Outcome.VIOLATED
        return Outcome.HOLDS if self.num_reached else Outcome.INCONCLUSIVE

    def add(self, other: Verdict) -> None:
        """Take the verdict of another run into account."""
        self.num_reached += other.num_reached
        self.num_broken += other.num_broken
        if self.first is None:
            self.first, self.at = other.first, other.at
