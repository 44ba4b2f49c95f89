"""Records that are made in every step or for every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass whose instances nobody changes, which the type checker sees to, and not the run time.

    A frozen dataclass sets each field through a call of `object.__setattr__`: with fifteen fields it takes four times as long to
    make, which was a fifth of the time of a scheduler's step.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
