"""What every part of a workload's description shares: the pydantic base, paths with variables, and errors told in one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from epdsim.core.errors import InputError
from epdsim.core.records import record

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
CHECK_PATH = "check the path; a relative one starts at the scenario file"

MAX_INT = 1 << 53
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_INT)]
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INT)]
"""Whole numbers that a draw of 64 bits holds, and a float without loss."""
MAX_HELD = 10_000
Held = Annotated[int, Field(ge=1, le=MAX_HELD)]
"""How many of something that is held in memory at once, for example the media of one request."""


class SpecModel(BaseModel):
    """Base of all descriptions: unknown keys are refused, NaN and infinity too, and values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, defer_build=True)

    def summary(self) -> str:
        """What differs from the defaults, in one line: `lognormal (mean 1000, stdev 500)`."""
        said = ", ".join(
            f"{name} {_summary(value)}"
            for name, field in type(self).model_fields.items()
            if name != "kind" and (value := getattr(self, name)) != field.default
        )
        kind = getattr(self, "kind", "")
        return f"{kind} ({said})" if kind and said else kind or said


def _summary(value: object) -> str:
    if isinstance(value, SpecModel):
        return value.summary()
    if isinstance(value, tuple):
        return "[" + ", ".join(_summary(part) for part in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def resolve_path(text: str, base_dir: Path) -> Path:
    """A path of a scenario file as the file system knows it.

    Args:
        text: The path; `${NAME}` and `${NAME:-default}` stand for environment variables.
        base_dir: What a relative path is relative to.

    Raises:
        InputError: A variable without default is not set.
    """

    def value_of(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"]) or match["default"]
        if found is None:
            remedy = f"set it, or write ${{{match['name']}:-somewhere}} for a default"
            raise InputError(f"path {text!r}", f"the environment variable {match['name']} is not set", remedy)
        return found

    return base_dir / Path(_VARIABLE.sub(value_of, text)).expanduser()


def absence_remedy(text: str) -> str:
    """What to do where a path of a scenario file leads to nothing; with a variable in it, it leads to data of others."""
    variable = _VARIABLE.search(text)
    if variable is None:
        return CHECK_PATH
    return f"fetch it and name the folder in {variable['name']} (docs/how-to/replay-a-public-trace.md says where from)"


@record
class Complaint:
    """One thing that pydantic found wrong, in the terms of who wrote the data.

    Attributes:
        key: Where it stands in the data: keys of mappings and places in lists, without pydantic's own names of union members.
        value: What stands there, as text; empty when the key is missing or unknown.
        rule: What is wrong with it.
    """

    key: tuple[str | int, ...]
    value: str
    rule: str

    @property
    def dotted(self) -> str:
        """The key as one word; empty where the rule is about several keys at once."""
        return ".".join(map(str, self.key))


def complaints(error: ValidationError, given: object) -> list[Complaint]:
    """What pydantic found wrong with plain data.

    Args:
        error: What it raised.
        given: The data that was validated.
    """
    found: list[Complaint] = []
    for one in error.errors(include_url=False):
        kind, context, rule = one["type"], one.get("ctx", {}), one["msg"].removeprefix("Value error, ")
        key = key_in(given, one["loc"], is_missing=kind == "missing")
        value = "" if kind in {"missing", "extra_forbidden"} else shorten(repr(one["input"]), 80, placeholder="...")
        if kind.startswith("union_tag"):
            key = (*key, str(context.get("discriminator", "kind")).strip("'"))
            value = repr(context["tag"]) if "tag" in context else ""
            rule = (
                f"must be one of {context['expected_tags']}"
                if "tag" in context
                else "is missing, and says what the rest means"
            )
        elif kind == "missing":
            rule = "is missing"
        elif kind == "extra_forbidden":
            rule = "is not a key that is known here"
        found.append(Complaint(key, value, rule))
    return found


def key_in(given: object, location: tuple[str | int, ...], *, is_missing: bool) -> tuple[str | int, ...]:
    """Where a location of pydantic stands in the data, without its own names of union members."""
    key: list[str | int] = []
    for place, part in enumerate(location):
        is_index = isinstance(given, (list, tuple)) and isinstance(part, int) and part < len(given)
        if is_index or (isinstance(given, Mapping) and part in given):
            given = given[part]  # type: ignore[index]
        elif not (is_missing and place == len(location) - 1):
            continue  # A name that pydantic gives to a member of a union, not a key.
        key.append(part)
    return tuple(key)


def as_input_error(error: ValidationError, given: object, what: str, validate: Callable[[Any], object]) -> InputError:
    """The first complaint as one sentence.

    Args:
        error: What pydantic raised.
        given: The data that was validated.
        what: The thing that was described, put in front of the key.
        validate: What raised it.
    """
    from epdsim.workload.unknown_keys import advice  # noqa: PLC0415 - only for what is refused

    first, *more = complaints(error, given)
    value = f" = {first.value}" if first.value else ""
    place = f"{what}: {first.dotted}{value}" if first.key else what
    hint = advice(error, given, validate) if error.errors()[0]["type"] == "extra_forbidden" else ""
    told_more = f"{len(more)} more to correct after this" if more else ""
    return InputError(place, first.rule, "; ".join(filter(None, (hint, told_more))))
