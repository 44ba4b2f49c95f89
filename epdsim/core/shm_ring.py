"""A ring of objects in shared memory: one writer that lays them down, readers that come by address.

Objects lie one after another, each whole; one that does not fit before the end of the ring starts at its beginning, and the rest
of the lap stays unused. Only the oldest object can go, so memory is given back in the order in which it was taken. Addresses count
on from lap to lap; an object is at its address modulo the size of the ring, under a header that names it, so a reader sees when
something else lies there by now.

The ring here keeps no bytes but says what lies where. `Memory` holds that independently of the writer's books: an object whose body
was overwritten under an intact header would be read as if it were whole, which must never happen (SHM-SAFE).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

HEADER_BYTES = 8
"""Number and size in front of each object (vLLM PR 20452)."""


class Handle(NamedTuple):
    """Where an object was put.

    Attributes:
        address: Where its header starts, counted over all laps.
        monotonic_id: Its number; no two objects of a ring have the same.
    """

    address: int
    monotonic_id: int


class StaleHandleError(Exception):
    """What a handle names is not at its address any more."""


class DamagedObjectError(Exception):
    """An object was overwritten in part under its intact header: a reader could not have seen it."""


class Memory:
    """What physically lies in the ring.

    Args:
        size_bytes: Of the ring.
    """

    __slots__ = ("_chunks", "_starts", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._starts: list[int] = []
        self._chunks: dict[int, tuple[int, int, bool]] = {}

    def write(self, handle: Handle, total_bytes: int) -> None:
        """Lay an object down, over whatever lies there."""
        start = handle.address % self.size_bytes
        end = start + total_bytes
        assert end <= self.size_bytes, "an object is whole"
        at = bisect_left(self._starts, start)
        if at and (before := self._starts[at - 1]) + self._chunks[before][0] > start:
            size, number, _ = self._chunks[before]
            self._chunks[before] = size, number, False
        past = bisect_left(self._starts, end)
        for gone in self._starts[at:past]:
            del self._chunks[gone]
        self._starts[at:past] = [start]
        self._chunks[start] = total_bytes, handle.monotonic_id, True

    def check(self, handle: Handle) -> None:
        """Read an object.

        Raises:
            StaleHandleError: Its header is not there.
            DamagedObjectError: Its header is there and its body is not.
        """
        _, number, is_whole = self._chunks.get(handle.address % self.size_bytes, (0, -1, True))
        if number != handle.monotonic_id:
            raise StaleHandleError(f"object {handle.monotonic_id} is not at address {handle.address} any more")
        if not is_whole:
            raise DamagedObjectError(
                f"object {handle.monotonic_id} at address {handle.address} was overwritten in part"
            )


class ShmRing:
    """The writer's books.

    Args:
        size_bytes: Of the ring.

    Attributes:
        memory: What lies in it.
        next_id: Number of the next object.
    """

    __slots__ = ("_head", "_live", "_tail", "memory", "next_id")

    def __init__(self, size_bytes: int) -> None:
        self.memory = Memory(size_bytes)
        self._live: deque[tuple[Handle, int]] = deque()
        self._head = self._tail = 0
        self.next_id = 0

    @property
    def size_bytes(self) -> int:
        """Of the ring."""
        return self.memory.size_bytes

    @property
    def live(self) -> list[tuple[Handle, int]]:
        """Objects that have not gone, oldest first, with their bytes, header included."""
        return list(self._live)

    def allocate(self, num_bytes: int) -> Handle | None:
        """Lay down an object of `num_bytes` and its header; None when it does not fit now."""
        total, size = num_bytes + HEADER_BYTES, self.size_bytes
        address = self._tail
        if address % size + total > size:
            address = (address // size + 1) * size
        if address + total - self._head > size:
            return None
        handle = Handle(address, self.next_id)
        self._live.append((handle, total))
        self._tail = address + total
        self.next_id += 1
        self.memory.write(handle, total)
        return handle

    def reclaim(self, is_free: Callable[[int], bool], num_bytes: int) -> list[int]:
        """Let the oldest objects go.

        Args:
            is_free: Whether the object of a number may go; the first that may not keeps all younger ones.
            num_bytes: Bytes after which no more need go.

        Returns:
            The numbers of those that went.
        """
        gone: list[int] = []
        freed = 0
        while self._live and freed < num_bytes and is_free(self._live[0][0].monotonic_id):
            handle, total = self._live.popleft()
            gone.append(handle.monotonic_id)
            freed += total
            if self._live:
                self._head += (self._live[0][0].address - self._head) % self.size_bytes
            else:
                self._head = self._tail = 0
        if self._head >= self.size_bytes:
            self._head -= self.size_bytes
            self._tail -= self.size_bytes
        return gone

    def clear(self, *, restart_ids: bool = False) -> None:
        """Forget all objects; their bytes stay until something is written over them.

        Args:
            restart_ids: Number objects from 0 again, so that a handle given out before may name another object.
        """
        self._live.clear()
        self._head = self._tail = 0
        if restart_ids:
            self.next_id = 0
