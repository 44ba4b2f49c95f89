"""Rules as values: the registry that a dialect fills.

A rule of the protocol or the scheduler that a release, a policy or a defect changes is a `Rule`: a name, a sentence, its source and
the ideal behaviour as a function. It is declared in the module that it belongs to and called through a `Dialect`, so a defect
replaces one entry from outside and the ideal path stays readable.

    COVERED = Rule("strip.covered", "An item is covered when ...", source="vLLM PR 52041", ideal=is_covered)
    dialect[COVERED](item, num_computed_tokens)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from epdsim.core.errors import InputError
from epdsim.core.records import record

F = TypeVar("F", bound=Callable[..., Any])

_RULES: dict[str, Rule[Any]] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Rule(Generic[F]):
    """One replaceable rule.

    Attributes:
        name: Room and matter, for example `"strip.covered"`; unique.
        statement: What holds, in one sentence.
        source: Paper, pull request or issue that it comes from.
        ideal: How the protocol should behave.
    """

    name: str
    statement: str
    source: str
    ideal: F

    def __post_init__(self) -> None:
        assert self.name not in _RULES, f"rule {self.name!r} is declared twice"
        _RULES[self.name] = self


@record
class Replacement:
    """One entry of a dialect that differs from the ideal, with the reason."""

    behaviour: Callable[..., Any]
    why: str


class Dialect:
    """A choice for every rule: the ideal, a release, or a defect on top of either.

    Args:
        name: For messages and recordings.
        replacements: Rule name to what stands in its place.
    """

    __slots__ = ("_replacements", "name")

    def __init__(self, name: str, replacements: Mapping[str, Replacement] | None = None) -> None:
        self.name = name
        self._replacements = dict(replacements or {})
        unknown = sorted(set(self._replacements) - set(_RULES))
        if unknown:
            raise InputError(f"dialect {name!r} replaces {unknown}", "no such rule", f"the rules are {sorted(_RULES)}")

    def __getitem__(self, rule: Rule[F]) -> F:
        """The behaviour in force for a rule."""
        found = self._replacements.get(rule.name)
        return rule.ideal if found is None else cast("F", found.behaviour)

    def replacing(self, name: str, replacements: Mapping[str, Replacement]) -> Dialect:
        """A new dialect with further entries replaced; self is unchanged."""
        return Dialect(name, {**self._replacements, **replacements})

    @property
    def replacements(self) -> Mapping[str, Replacement]:
        """What differs from the ideal, by rule name."""
        return dict(self._replacements)

    def __repr__(self) -> str:
        return f"Dialect({self.name!r}, replaces {sorted(self._replacements) or 'nothing'})"


IDEAL = Dialect("ideal")
"""How the protocol should behave: no entry replaced."""


def rules() -> Iterator[Rule[Any]]:
    """The rules of all modules imported so far, by name: a rule is declared where it belongs."""
    return iter(sorted(_RULES.values(), key=lambda rule: rule.name))
