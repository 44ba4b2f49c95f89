"""What every part of a workload's description shares: the pydantic base, paths with variables, and errors told in one sentence."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from epdsim.core.errors import InputError

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


class SpecModel(BaseModel):
    """Base of all descriptions: unknown keys are refused, NaN and infinity too, and values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


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


def as_input_error(error: ValidationError, what: str) -> InputError:
    """The first complaint of pydantic as one sentence that names the key.

    Args:
        error: What pydantic raised.
        what: The thing that was described, put in front of the key.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    given = "" if first["type"] in {"missing", "extra_forbidden"} else f" = {first['input']!r}"
    rule = first["msg"].removeprefix("Value error, ")
    more = error.error_count() - 1
    return InputError(
        f"{what}: {key or 'the whole'}{given}", rule, f"{more} more to correct after this" if more else ""
    )
