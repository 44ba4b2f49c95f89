"""Records do as the dataclasses of the standard library that are frozen, but for the check at run time."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, field, fields, replace

import pytest

from epdsim.core.records import record


def point(declare):
    class Point:
        x: int
        y: float = 0.5
        note: str = field(default="", compare=False)
        source: object = field(default=None, repr=False, hash=False)
        tags: tuple[str, ...] = field(default_factory=tuple)

        @property
        def total(self):
            return self.x + self.y

    return declare(Point)


def alone(declare):
    class Alone:
        value: float

    return declare(Alone)


def nothing(declare):
    class Nothing:
        pass

    return declare(Nothing)


def named(declare):
    class Named:
        name: str

        def __repr__(self):
            return self.name

    return declare(Named)


@record
class Kept:
    x: int
    inner: Kept | None = None


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (point, [(1,), (1, 0.5, "another note"), (1, 0.5, "", [2]), (2, 0.5, "", None, ("a",)), (1.0,)]),
        (alone, [(1.0,), (1,), (2.0,), (NAN,), ((1.0,),)]),
        (nothing, [()]),
        (named, [("a",), ("b",)]),
    ],
)
def test_equality_hash_and_text_are_those_of_a_frozen_dataclass(kind, values):
    mine, standard = kind(record), kind(dataclass(frozen=True, slots=True))
    ours, theirs = [mine(*one) for one in values], [standard(*one) for one in values]
    for one, other in zip(ours, theirs, strict=True):
        assert (hash(one), repr(one)) == (hash(other), repr(other))
        assert [one == another for another in ours] == [other == another for another in theirs]
        assert one.__eq__(other) is NotImplemented


def test_records_are_dataclasses_with_slots():
    made = point(record)
    assert [one.name for one in fields(made)] == ["x", "y", "note", "source", "tags"]
    assert replace(made(1, 2.0), y=3.0) == made(1, 3.0)
    assert made(1, 2.0).total == 3.0
    assert not hasattr(made(1), "__dict__")
    assert asdict(Kept(1, Kept(2))) == {"x": 1, "inner": {"x": 2, "inner": None}}
    assert pickle.loads(pickle.dumps(Kept(1, Kept(2)))) == Kept(1, Kept(2))


def test_a_record_that_holds_itself_has_a_text():
    one = Kept(1)
    object.__setattr__(one, "inner", one)
    assert repr(one) == "Kept(x=1, inner=...)"
