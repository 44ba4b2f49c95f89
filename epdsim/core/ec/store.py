"""The store through which encoders hand embeddings to prefill (vLLM's EC connector), as pure bookkeeping.

An entry is *reserved* when an encode of it starts, *ready* when its bytes are complete, and *gone* once evicted. Only ready entries
are announced (property EC-READY). Eviction is least recently used, by bytes, and never takes an entry that is not ready or that
somebody has pinned: a handle that was given out stays good until its lease is returned.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class EcEntry:
    """One embedding.

    Attributes:
        embedding_bytes: Its size.
        is_ready: Whether its bytes are complete.
        pins: Leases on it.
    """

    embedding_bytes: int
    is_ready: bool = False
    pins: int = 0


class EcStore:
    """Embeddings by identifier.

    Args:
        capacity_bytes: What it may hold; None for no limit.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[str, EcEntry] = OrderedDict()

    def is_ready(self, identifier: str) -> bool:
        """Whether the embedding can be loaded now."""
        entry = self._entries.get(identifier)
        return entry is not None and entry.is_ready

    def is_reserved(self, identifier: str) -> bool:
        """Whether an encode of it is under way."""
        entry = self._entries.get(identifier)
        return entry is not None and not entry.is_ready

    def reserve(self, identifier: str, embedding_bytes: int) -> None:
        """Announce internally that an encode has begun; the caller has seen that there is no entry."""
        assert identifier not in self._entries, f"{identifier!r} is there already"
        self._entries[identifier] = EcEntry(embedding_bytes)
        self.used_bytes += embedding_bytes

    def publish(self, identifier: str) -> list[str]:
        """Mark a reserved entry ready and make room for it; the evicted identifiers, oldest first."""
        self._entries[identifier].is_ready = True
        self._entries.move_to_end(identifier)
        evicted: list[str] = []
        while self.capacity_bytes is not None and self.used_bytes > self.capacity_bytes:
            evictable = (
                key for key, entry in self._entries.items() if entry.is_ready and not entry.pins and key != identifier
            )
            victim = next(evictable, None)
            if victim is None:
                break
            self.evict(victim)
            evicted.append(victim)
        return evicted

    def pin(self, identifier: str) -> None:
        """Take a lease on an entry, ready or not."""
        self._entries[identifier].pins += 1

    def unpin(self, identifier: str) -> None:
        """Return a lease."""
        entry = self._entries[identifier]
        assert entry.pins > 0, f"{identifier!r} is unpinned more often than pinned"
        entry.pins -= 1

    def touch(self, identifier: str) -> int:
        """Read a ready entry: it becomes the most recent; its bytes."""
        entry = self._entries[identifier]
        assert entry.is_ready, f"{identifier!r} is read before it is complete"
        self._entries.move_to_end(identifier)
        return entry.embedding_bytes

    def is_pinned(self, identifier: str) -> bool:
        """Whether anybody has a lease on an entry."""
        return self._entries[identifier].pins > 0

    def evict_unleased(self) -> list[str]:
        """Drop every entry that is ready and that nobody has a lease on; their identifiers, oldest first."""
        gone = [identifier for identifier, entry in self._entries.items() if entry.is_ready and not entry.pins]
        for identifier in gone:
            self.evict(identifier)
        return gone

    def evict(self, identifier: str) -> None:
        """Drop an entry."""
        entry = self._entries[identifier]
        assert not entry.pins, f"{identifier!r} is evicted under a lease"
        del self._entries[identifier]
        self.used_bytes -= entry.embedding_bytes

    def __len__(self) -> int:
        return len(self._entries)
