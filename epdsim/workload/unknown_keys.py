"""What to write in place of a key that is not known; imported where there is one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import BaseModel, ValidationError

from epdsim.workload.specs import key_in


def advice(error: ValidationError, given: object, validate: Callable[[Any], object]) -> str:
    """The known key that is like the first unknown one, or all that may stand there.

    Which may depends on the rest of the data (kinds have their own), so it is read once more without the unknown keys; where it
    cannot be used for another reason too, there is no advice.

    Args:
        error: What pydantic raised.
        given: The data that was validated.
        validate: Makes the model of it.
    """
    found = [one["loc"] for one in error.errors(include_url=False) if one["type"] == "extra_forbidden"]
    unknown = [key_in(given, location, is_missing=False) for location in found]
    rest: Any = copy.deepcopy(given)
    for *above, last in unknown:
        reduce(getitem, above, rest).pop(last, None)  # two places may be one mapping, given twice
    try:
        made: Any = validate(rest)
    except ValidationError:
        return ""
    for part in unknown[0][:-1]:
        made = getattr(made, str(part)) if isinstance(made, BaseModel) else made[part]
    return meant(str(unknown[0][-1]), tuple(type(made).model_fields))


def meant(name: str, known: Sequence[str]) -> str:
    """The name that is like an unknown one, or all of them."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
