"""The clock of a run in counts, with the order of `World` within an instant."""

from __future__ import annotations

from heapq import heappop, heappush

NORMAL = 1
"""What happens before the ends of steps, in the order in which it was set."""

STEP_END = 2
"""The end of a step of the first engine; each further engine comes behind the one before it."""

Due = tuple[float, int, int, int, object]


class Clock:
    """What will happen when.

    Attributes:
        now_ms: The time.
        number: Of what was set last.
    """

    __slots__ = ("_due", "now_ms", "number")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.number = 0
        self._due: list[Due] = []

    def set(self, at_ms: float, priority: int, kind: int, what: object) -> int:
        """Let something happen.

        Args:
            at_ms: When.
            priority: Smaller comes first within an instant.
            kind: Of happening.
            what: Whom or what it concerns.

        Returns:
            The number that it will have.
        """
        self.number += 1
        heappush(self._due, (at_ms, priority, self.number, kind, what))
        return self.number

    @property
    def is_set(self) -> bool:
        """Whether anything will happen."""
        return bool(self._due)

    def take(self) -> Due:
        """What happens next, at whose time it is then."""
        due = heappop(self._due)
        self.now_ms = due[0]
        return due
