"""Copies of embeddings in an engine's host memory, which an EC connector that pulls fills and serves from.

Capacity is counted in embeddings. An entry is *taken* when somebody is about to write it, *ready* when its bytes are complete, and
*pinned* while somebody reads it. Room is made when an entry is taken: of the entries that are ready and not pinned, the one that
has been so longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class HostEntry:
    """One embedding.

    Attributes:
        num_embeds: Room that it takes.
        is_ready: Whether its bytes are complete.
        pins: Who reads it.
    """

    num_embeds: int
    is_ready: bool = False
    pins: int = 0


class HostCache:
    """Embeddings by identifier.

    Args:
        capacity: Embeddings that fit.
    """

    __slots__ = ("_entries", "_evictable", "capacity", "num_evictable", "num_free")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.num_free = capacity
        self.num_evictable = 0
        self._entries: dict[str, HostEntry] = {}
        self._evictable: OrderedDict[str, None] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or read."""
        return len(self._entries) == len(self._evictable)

    def get(self, identifier: str) -> HostEntry | None:
        """The entry, if there is one; for reading."""
        return self._entries.get(identifier)

    def is_ready(self, identifier: str) -> bool:
        """Whether the embedding can be read now."""
        entry = self._entries.get(identifier)
        return entry is not None and entry.is_ready

    def take(self, identifier: str, num_embeds: int) -> bool:
        """Make an entry that is about to be written; False and nothing done when there is no room for it."""
        assert identifier not in self._entries, f"{identifier!r} is there already"
        if self.num_free + self.num_evictable < num_embeds:
            return False
        while self.num_free < num_embeds:
            victim, _ = self._evictable.popitem(last=False)
            freed = self._entries.pop(victim).num_embeds
            self.num_evictable -= freed
            self.num_free += freed
        self._entries[identifier] = HostEntry(num_embeds)
        self.num_free -= num_embeds
        return True

    def publish(self, identifier: str) -> None:
        """The bytes of an entry are complete."""
        entry = self._entries[identifier]
        assert not entry.is_ready, f"{identifier!r} is complete already"
        entry.is_ready = True
        self._let_go(identifier, entry)

    def pin(self, identifier: str) -> None:
        """Read a ready entry: it stays until it is unpinned as often."""
        entry = self._entries[identifier]
        assert entry.is_ready, f"{identifier!r} is read before it is complete"
        if not entry.pins:
            del self._evictable[identifier]
            self.num_evictable -= entry.num_embeds
        entry.pins += 1

    def unpin(self, identifier: str) -> None:
        """A reader is done."""
        entry = self._entries[identifier]
        assert entry.pins > 0, f"{identifier!r} is unpinned more often than pinned"
        entry.pins -= 1
        if not entry.pins:
            self._let_go(identifier, entry)

    def discard(self, identifier: str) -> None:
        """Drop an entry that was never completed."""
        entry = self._entries.pop(identifier)
        assert not entry.is_ready, f"{identifier!r} is complete: it goes by eviction"
        self.num_free += entry.num_embeds

    def drop_ready(self) -> None:
        """Evict whatever is not being written or read."""
        for identifier in self._evictable:
            del self._entries[identifier]
        self._evictable.clear()
        self.num_free += self.num_evictable
        self.num_evictable = 0

    def clone(self) -> HostCache:
        """An independent copy."""
        other = HostCache(self.capacity)
        other.num_free, other.num_evictable = self.num_free, self.num_evictable
        other._entries = {
            name: HostEntry(entry.num_embeds, entry.is_ready, entry.pins) for name, entry in self._entries.items()
        }
        other._evictable = OrderedDict(self._evictable)
        return other

    def fingerprint(self) -> object:
        """All that decides what it does next."""
        held = sorted((name, entry.num_embeds, entry.is_ready, entry.pins) for name, entry in self._entries.items())
        return held, tuple(self._evictable)

    def _let_go(self, identifier: str, entry: HostEntry) -> None:
        self._evictable[identifier] = None
        self.num_evictable += entry.num_embeds

    def __len__(self) -> int:
        return len(self._entries)
