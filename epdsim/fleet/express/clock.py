"""The clock of a run in counts, with the order of `World` within an instant."""

from __future__ import annotations

from heapq import heappush

NORMAL = 1
"""What happens before the ends of steps, in the order in which it was set."""

STEP_END = 2
"""The end of a step of the first engine; each further engine comes behind the one before it."""

Due = tuple[float, int, int, int, object]


class Clock:
    """What will happen when.

    Attributes:
        now_ms: The time.
        due: What will happen, as a heap: when, priority, number, kind, and whom or what it concerns.
    """

    __slots__ = ("_number", "due", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.due: list[Due] = []
        self._number = 0

    def set(self, at_ms: float, priority: int, kind: int, what: object) -> int:
        """Let something happen.

        Args:
            at_ms: When.
            priority: Smaller comes first within an instant.
            kind: Of happening.
            what: Whom or what it concerns.

        Returns:
            The number that it has, which no other has.
        """
        self._number = number = self._number + 1
        heappush(self.due, (at_ms, priority, number, kind, what))
        return number
