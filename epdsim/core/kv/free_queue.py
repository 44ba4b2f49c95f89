"""Free blocks whose content can still be found, in the order in which they were freed.

A block that is found again leaves the queue from its middle. Its entry stays and is passed over when its turn comes, so that
blocks are queued and taken many at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SLACK: Final = 64
"""Entries that may be passed over, or have been taken, before it is worth to write the queue anew."""


class FreeQueue:
    """First in, first out.

    Attributes:
        num_blocks: In the queue.
    """

    __slots__ = ("_entries", "_head", "_num_left", "_times_left", "num_blocks")

    def __init__(self) -> None:
        self.num_blocks = 0
        self._entries: list[int] = []
        self._head = 0
        # Blocks that left from the middle, and how many of their entries, which stand before any later one, say nothing.
        self._times_left: dict[int, int] = {}
        self._num_left = 0

    def append(self, blocks: list[int]) -> None:
        """Queue blocks, the first one first; none of them is in the queue."""
        self._entries += blocks
        self.num_blocks += len(blocks)

    def take(self, count: int) -> list[int]:
        """Take the next `count` blocks, which are there."""
        self.num_blocks -= count
        if self._num_left:
            return self._take_one_by_one(count)
        start, self._head = self._head, self._head + count
        taken = self._entries[start : self._head]
        self._forget_taken()
        return taken

    def _forget_taken(self) -> None:
        if self._head > self.num_blocks + _SLACK:
            del self._entries[: self._head]
            self._head = 0

    def _take_one_by_one(self, count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            block = self._entries[self._head]
            self._head += 1
            if not self._is_void(block, self._times_left):
                taken.append(block)
            else:
                self._num_left -= 1
        self._forget_taken()
        return taken

    def remove(self, block: int) -> None:
        """Take a block out that is in the queue, wherever it stands."""
        self._times_left[block] = self._times_left.get(block, 0) + 1
        self._num_left += 1
        self.num_blocks -= 1
        if self._num_left > self.num_blocks + _SLACK:
            self._entries, self._head = list(self), 0
            self._times_left.clear()
            self._num_left = 0

    def clear(self) -> None:
        """Empty it."""
        self._entries.clear()
        self._times_left.clear()
        self._head = self._num_left = self.num_blocks = 0

    def __iter__(self) -> Iterator[int]:
        times_left = dict(self._times_left)
        return iter([block for block in self._entries[self._head :] if not self._is_void(block, times_left)])

    @staticmethod
    def _is_void(block: int, times_left: dict[int, int]) -> bool:
        """Whether the next entry of a block is one to pass over, which then is one less."""
        times = times_left.get(block, 0)
        if times > 1:
            times_left[block] = times - 1
        elif times:
            del times_left[block]
        return times > 0

    def copy(self) -> FreeQueue:
        """An independent copy."""
        other = FreeQueue()
        other.append(list(self))
        return other
