"""Asks a system for the positions of a prompt in every way in which it comes to be computed, and tells them as events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.core.positions import lay_out, position_scheme, spans_from_features
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.strip import strip_covered
from epdsim.events import PositionsComputed, Sink
from epdsim.sut.position_cases import PositionCase, position_features

INSTANCE = "positions"
_CASE = "c0"


class PositionsUnderTest(Protocol):
    """Positions as a worker computes them from the items that it holds."""

    def knows(self, scheme: str) -> bool:
        """Whether it has the scheme."""
        ...

    def columns(
        self, scheme: str, num_prompt_tokens: int, features: Sequence[MediaFeature], start: int, end: int
    ) -> tuple[Sequence[Sequence[int]], int]:
        """Positions of tokens `[start, end)` and the decode delta.

        Any exception is a failure to compute them.
        """
        ...

    def strip(self, scheme: str, features: Sequence[MediaFeature], num_computed_tokens: int) -> Sequence[MediaFeature]:
        """What workers are sent of the items at an admission."""
        ...


class ReferencePositions:
    """The model's, in a dialect."""

    def __init__(self, dialect: Dialect = IDEAL) -> None:
        self._dialect = dialect

    def knows(self, scheme: str) -> bool:
        """It has all that there are."""
        del scheme
        return True

    def columns(
        self, scheme: str, num_prompt_tokens: int, features: Sequence[MediaFeature], start: int, end: int
    ) -> tuple[Sequence[Sequence[int]], int]:
        """Positions and delta."""
        found = position_scheme(scheme)
        spans = spans_from_features(found, features, self._dialect)
        layout = lay_out(found, num_prompt_tokens, spans, self._dialect)
        return layout.columns(start, end), layout.decode_delta

    def strip(self, scheme: str, features: Sequence[MediaFeature], num_computed_tokens: int) -> Sequence[MediaFeature]:
        """What workers are sent."""
        found = position_scheme(scheme)
        kinds = {"uses_mrope": found.uses_mrope, "uses_xdrope": found.uses_xdrope}
        return strip_covered(features, num_computed_tokens, **kinds, dialect=self._dialect)


def ask_positions(case: PositionCase, system: PositionsUnderTest, sink: Sink) -> None:
    """Ask for the positions of a prompt; nothing is told when the system does not know its scheme."""
    if not system.knows(case.scheme):
        return
    features = position_features(case.items)
    num_tokens, end = case.num_prompt_tokens, case.num_prompt_tokens + case.num_generated

    def tell(how: str, held: Sequence[MediaFeature], prompt: int, start: int, past: int, num_computed: int = 0) -> None:
        columns: Sequence[Sequence[int]] = ()
        delta, refused = 0, ""
        try:
            columns, delta = system.columns(case.scheme, prompt, held, start, past)
        except InputError as error:
            refused = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a system fails with is a finding
            refused = f"{type(error).__name__}: {error}"
        covered = sum(one.position.end <= num_computed for one in held) if num_computed else 0
        told = [list(map(int, column)) for column in columns]
        facts = start, past, told, int(delta), len(held), num_computed, covered, refused
        sink(PositionsComputed(0, INSTANCE, _CASE, case.scheme, how, *facts))

    tell("whole", features, num_tokens, 0, end)
    for low, high in pairwise([0, *case.cuts, end]):
        tell("chunk", features, num_tokens, low, high)
    tell("resumed", features, end, 0, end)
    light = [replace(one, data=None if one.data is None else one.data.subset()) for one in features]
    tell("metadata", light, num_tokens, 0, end)
    for past in case.turns:
        tell("turn", [one for one in features if one.position.end <= past], past, 0, past)
    stripped = system.strip(case.scheme, features, case.num_computed)
    tell("stripped", stripped, num_tokens, case.num_computed, end, case.num_computed)
