"""Records: what is made once and read from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass whose instances nobody changes, which the type checker sees to, and not the run time.

    A frozen dataclass sets each field through a call of `object.__setattr__`: with fifteen fields it takes four times as long to
    make, which was a fifth of the time of a scheduler's step. It also takes four times as long to declare, for the source of six
    methods is written and compiled, which was a tenth of the start of `epdsim run`: here this is done for `__init__` alone.

    Of a dataclass that it meets itself the compiler (`hatch_build.py`) makes a struct: such are the settings that a scheduler reads
    in every step, and what monitors find.
    """
    made: Any = dataclass(slots=True, repr=False, eq=False)(cls)
    compared = _values([one.name for one in fields(made) if one.compare])
    hashed = _values([one.name for one in fields(made) if (one.compare if one.hash is None else one.hash)])

    def is_equal(self: T, other: object) -> bool:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: T) -> int:
        return hash(hashed(self))

    for name, method in {"__eq__": is_equal, "__hash__": hash_of, "__repr__": _told}.items():
        if name not in cls.__dict__:
            setattr(made, name, method)
    return made


def _values(names: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """Reads some fields of a record, as a tuple also where there is one, or none."""
    if len(names) > 1:
        return attrgetter(*names)
    reads = [attrgetter(name) for name in names]
    return lambda one: tuple([read(one) for read in reads])


@recursive_repr()
def _told(one: Any) -> str:
    shown = (f"{field.name}={getattr(one, field.name)!r}" for field in fields(one) if field.repr)
    return f"{type(one).__qualname__}({', '.join(shown)})"
