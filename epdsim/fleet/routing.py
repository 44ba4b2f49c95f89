"""Which instance of a pool takes the next request. A router sees only what it could know: what it sent and what came back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """What a router may ask an instance's own books of: requests sent to it and not yet answered."""

    outstanding: int


I = TypeVar("I", bound=Loaded)  # noqa: E741 - the instance type of a pool
Router = Callable[[Sequence[I]], I]


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, pool: Sequence[I]) -> I:
        """The next in turn."""
        chosen = pool[self._next % len(pool)]
        self._next += 1
        return chosen


class LeastLoaded:
    """Fewest outstanding requests; ties go in turn, so that idle equals share the work."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, pool: Sequence[I]) -> I:
        """The least loaded, looking first at the one after the last chosen."""
        order = [(self._next + step) % len(pool) for step in range(len(pool))]
        index = min(order, key=lambda candidate: pool[candidate].outstanding)
        self._next = index + 1
        return pool[index]


def router(name: str) -> RoundRobin | LeastLoaded:
    """A fresh router by its name in scenario files."""
    return {"round_robin": RoundRobin, "least_loaded": LeastLoaded}[name]()
