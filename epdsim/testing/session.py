"""One property run: a system, its explorations, and the verdict of each property with its story."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epdsim.core.errors import InputError
from epdsim.spec import REGISTER, Outcome, Property, Verdict
from epdsim.sut.systems import find_system
from epdsim.testing.failures import FOLDER, keep, told_failure
from epdsim.testing.hunt import Exploration, Hunter, Progress, Story
from epdsim.testing.verdicts import line_of


class Session:
    """A property run against one system.

    Args:
        sut: Name of the system.
        dialect: Of the reference; None for its default.
        seed: Of all explorations.
        budget: Cases of each exploration.
        folder: Where failures are kept; None for the usual place.
        seconds: For all that is explored and made short; None for as long as it takes.
        progress: Told what is done.
        tells_stories: Whether violations are made small, told and kept; else there are verdicts alone.

    Raises:
        InputError: No such system, or it is not installed.
    """

    def __init__(
        self,
        sut: str = "reference",
        dialect: str | None = None,
        seed: int = 0,
        budget: int = 150,
        folder: Path | None = None,
        seconds: float | None = None,
        progress: Progress = lambda _: None,
        *,
        tells_stories: bool = True,
    ) -> None:
        self.tells_stories = tells_stories
        self.sut, self.dialect, self.folder = sut, dialect, folder or FOLDER
        self.system = find_system(sut, dialect)
        self.hunter = Hunter(self.system, seed, budget, seconds=seconds, progress=progress)

    def reason_to_skip(self, property_id: str, explorations: Sequence[Exploration]) -> str:
        """Why a property is not run against the system; empty when it is."""
        one = REGISTER[property_id]
        if self.sut in one.exempt:
            return one.exempt[self.sut]
        if not any(self.hunter.can(exploration) for exploration in explorations):
            return f"{self.system.title} has no {explorations[0].level} to put cases to"
        return ""

    def check(self, property_id: str, explorations: Sequence[Exploration]) -> dict[str, Any]:
        """The verdict of a property, as plain data; violations are made small and kept, one for each rule that they hang on."""
        total = Verdict(property_id)
        told: dict[str, Any] = {"id": property_id}
        explorations = [one for one in explorations if self.hunter.can(one)]
        for exploration in explorations:
            explored = self.hunter.explored(exploration)
            total.add(explored.verdicts.get(property_id, Verdict(property_id)))
            if explored.is_cut:
                told["is_cut"] = True
        told |= {"outcome": str(total.outcome), "num_reached": total.num_reached}
        if total.outcome is Outcome.VIOLATED:
            return told | self._stories(explorations, property_id)
        if total.outcome is Outcome.INCONCLUSIVE:
            over = "the time was over, and " if told.get("is_cut") else ""
            told["reason"] = f"{over}no case reached its premise ({REGISTER[property_id].sometimes})"
        return told

    def _stories(self, explorations: Sequence[Exploration], property_id: str) -> dict[str, Any]:
        if not self.tells_stories:
            return {"stories": []}
        try:
            found = self.hunter.stories(explorations, property_id)
        except Exception as error:  # noqa: BLE001 - the verdict stands whatever becomes of its story
            return {"stories": [], "reason": f"its story could not be made: {line_of(error)}"}
        stories = [self._kept(one) for one in found]
        first = stories[0]
        return {"stories": stories, **{key: first[key] for key in ("replay", "reason") if key in first}}

    def canary(self, canary: Property, exploration: Exploration) -> list[str]:
        """The story of a property that must be violated: that it is told proves that violations are.

        Raises:
            AssertionError: It is not violated.
        """
        hunter = Hunter(self.system, self.hunter.seed, self.hunter.budget, [canary])
        assert hunter.explored(exploration).verdicts[canary.id].num_broken, (
            "the canary is alive: violations are not found"
        )
        return told_failure(hunter.smallest(exploration, canary.id))

    def _kept(self, story: Story) -> dict[str, Any]:
        """A violation kept, as plain data: with `failure` and `replay`, or with the `reason` why it could not be kept."""
        found = story.found
        try:
            identifier = keep(
                found,
                system=self.sut,
                dialect=self.dialect,
                version=self.system.version,
                seed=self.hunter.seed,
                exploration=story.exploration,
                folder=self.folder,
            )
        except InputError as error:
            place = {"reason": f"its story could not be kept: {error}"}
            again = place["reason"]
        else:
            place = {"failure": identifier, "replay": f"epdsim replay {identifier}"}
            again = f"again, in this folder and environment: {place['replay']}"
        assert found.verdict.first is not None, "it is violated"
        lines = [
            *told_failure(found),
            "",
            _behind(story),
            f"found in {self.system.title}, seed {self.hunter.seed}; {again}",
        ]
        return {
            "lines": [one for one in lines if one is not None],
            **place,
            "told": found.verdict.first.told,
            "rules": story.rules,
        }


def _behind(story: Story) -> str | None:
    """What the model says of it."""
    if story.rules is None:
        return "the model of the release does not do this: it is new to it"
    plural = "s" if len(story.rules) > 1 else ""
    return f"the model does it too, by its rule{plural} {' and '.join(story.rules)}" if story.rules else None
