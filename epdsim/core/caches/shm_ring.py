"""A ring of objects in shared memory: one writer that lays them down, readers that come by address.

Objects lie one after another, each whole; one that does not fit before the end of the ring starts at its beginning, and the rest
of the lap stays unused. Only the oldest object can go, so memory is given back in the order in which it was taken. Addresses count
on from lap to lap; an object is at its address modulo the size of the ring, under a header that names it, so a reader sees when
something else lies there by now.

The ring keeps no bytes but says what lies where. `Memory` holds that independently of the writer's books: an object whose body was
overwritten under an intact header would be read as if it were whole, which must never happen (SHM-SAFE).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from epdsim.core.items import MediaItem
from epdsim.core.rules import IDEAL, Dialect, Rule

HEADER_BYTES = 8
"""Number and size in front of each object (vLLM PR 20452)."""


def at_following(head: int, _gone: int, following: int | None, size_bytes: int) -> int | None:
    """Where the oldest object starts once another has gone; None when there is none, so that the ring starts afresh."""
    return None if following is None else head + (following - head) % size_bytes


def at_gone(_head: int, gone: int, _following: int | None, _size_bytes: int) -> int | None:
    """The address of the one that has gone, as first given out: a lap off once addresses have been brought down by one."""
    return gone


HEAD = Rule(
    "shm_ring.head",
    "Memory in use begins with the oldest object that is there.",
    source="vLLM PR 27117 (releases up to 0.11.0 kept the address of the one that had gone)",
    ideal=at_following,
)


class Handle(NamedTuple):
    """Where an object was put.

    Attributes:
        address: Where its header starts, counted over the laps.
        monotonic_id: Its number; no two objects of a ring have the same.
    """

    address: int
    monotonic_id: int


class StaleHandleError(Exception):
    """What a handle names is not at its address any more."""


class DamagedObjectError(Exception):
    """An object was overwritten in part under its intact header: a reader could not have seen it."""


@dataclass(slots=True)
class Chunk:
    """An object as it lies in memory.

    Attributes:
        total_bytes: With its header.
        monotonic_id: Its number, in the header.
        item: What it holds.
        acknowledged: Acknowledgements counted in it, of all readers.
        is_whole: Whether nothing was written over its end.
    """

    total_bytes: int
    monotonic_id: int
    item: MediaItem
    acknowledged: int = 0
    is_whole: bool = True


class Memory:
    """What physically lies in the ring.

    Args:
        size_bytes: Of the ring.
    """

    __slots__ = ("_chunks", "_starts", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._starts: list[int] = []
        self._chunks: dict[int, Chunk] = {}

    def write(self, address: int, chunk: Chunk) -> None:
        """Lay an object down, over whatever lies there."""
        start = address % self.size_bytes
        end = start + chunk.total_bytes
        assert end <= self.size_bytes, "an object is whole"
        at = bisect_left(self._starts, start)
        if at:
            before = self._chunks[self._starts[at - 1]]
            before.is_whole &= self._starts[at - 1] + before.total_bytes <= start
        past = bisect_left(self._starts, end)
        for gone in self._starts[at:past]:
            del self._chunks[gone]
        self._starts[at:past] = [start]
        self._chunks[start] = chunk

    def read(self, handle: Handle) -> Chunk:
        """The object of a handle.

        Raises:
            StaleHandleError: Its header is not there.
            DamagedObjectError: Its header is there and its body is not.
        """
        chunk = self._chunks.get(handle.address % self.size_bytes)
        if chunk is None or chunk.monotonic_id != handle.monotonic_id:
            raise StaleHandleError(f"object {handle.monotonic_id} is not at address {handle.address} any more")
        if not chunk.is_whole:
            raise DamagedObjectError(
                f"object {handle.monotonic_id} at address {handle.address} was overwritten in part"
            )
        return chunk


class ShmRing:
    """The writer's books.

    Args:
        size_bytes: Of the ring.
        dialect: Rules `shm_ring.*`.

    Attributes:
        memory: What lies in it.
        next_id: Number of the next object.
    """

    __slots__ = ("_head", "_head_after", "_live", "_tail", "memory", "next_id")

    def __init__(self, size_bytes: int, dialect: Dialect = IDEAL) -> None:
        self.memory = Memory(size_bytes)
        self._head_after = dialect[HEAD]
        self._live: deque[tuple[Handle, Chunk]] = deque()
        self._head = self._tail = 0
        self.next_id = 0

    @property
    def live(self) -> list[tuple[Handle, Chunk]]:
        """Objects that have not gone, oldest first."""
        return list(self._live)

    def allocate(self, num_bytes: int, item: MediaItem) -> Handle | None:
        """Lay down an object of `num_bytes` and its header; None when it does not fit now."""
        total, size = num_bytes + HEADER_BYTES, self.memory.size_bytes
        address = self._tail
        if address % size + total > size:
            address = (address // size + 1) * size
        if address + total - self._head > size:
            return None
        handle, chunk = Handle(address, self.next_id), Chunk(total, self.next_id, item)
        self._live.append((handle, chunk))
        self._tail = address + total
        self.next_id += 1
        self.memory.write(address, chunk)
        return handle

    def reclaim(self, is_free: Callable[[Chunk], bool], num_bytes: int) -> list[int]:
        """Let the oldest objects go.

        Args:
            is_free: Whether an object may go; the first that may not keeps all younger ones.
            num_bytes: Bytes after which no more need go.

        Returns:
            The numbers of those that went.
        """
        gone: list[int] = []
        freed, size = 0, self.memory.size_bytes
        while self._live and freed < num_bytes and is_free(self._live[0][1]):
            handle, chunk = self._live.popleft()
            gone.append(handle.monotonic_id)
            freed += chunk.total_bytes
            head = self._head_after(self._head, handle.address, self._live[0][0].address if self._live else None, size)
            if head is None:
                self._head = self._tail = 0
            else:
                self._head = head
        if self._head >= size:
            self._head -= size
            self._tail -= size
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
