"""Media caches under test: what a property run asks of a mirrored processor cache and of a shared-memory one, and the model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from epdsim.core.caches.mm_cache import LruBytes, MediaCacheMissError
from epdsim.core.caches.mm_mirror import MirroredCaches
from epdsim.core.caches.shm_cache import ShmReader, ShmSender, handle_of
from epdsim.core.items import MediaFeature
from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect
from epdsim.events import CacheSide, RingEntry
from epdsim.sut.cache_cases import content_of


@record
class Taken:
    """What became of a request at the engine's side.

    Attributes:
        by_hash: Which items came without payload.
        contents: What the engine has of each; all None after a miss.
        missing: Keys that a miss names.
    """

    by_hash: Sequence[bool]
    contents: Sequence[str | None]
    missing: Sequence[str] = ()


class MirrorUnderTest(Protocol):
    """A mirrored processor cache.

    A client's error is an `InputError`; the front end loses a request by `ItemLostError`, a system its engine by
    `EngineLostError`.
    """

    def render(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Process the items of a request, which come with their payloads."""
        ...

    def refuse(self, request_id: str) -> None:
        """Refuse a rendered request, which never gets to the engine."""
        ...

    def hand_over(self, request_id: str) -> Taken:
        """Give a rendered request to the engine; after a miss the front end forgets what it names."""
        ...

    def direct(self, features: Sequence[MediaFeature]) -> Taken:
        """Give items with payloads to the engine's side, past the front end's."""
        ...

    def reset(self) -> None:
        """Forget everything at the front end, and tell the engine to."""
        ...

    def finish_reset(self) -> None:
        """The engine comes to the reset, unless it has."""
        ...

    def sides(self) -> tuple[CacheSide, CacheSide]:
        """Front end and engine as they are."""
        ...


class RingUnderTest(Protocol):
    """A shared-memory cache. An address that does not hold its object any more is a `StaleHandleError`."""

    def send(self, request_id: str, features: Sequence[MediaFeature]) -> Sequence[tuple[int, int] | None]:
        """A request's items as they are sent: address and number, or None for one that travels inline."""
        ...

    def read(self, request_id: str, rank: int) -> Sequence[str | None]:
        """A rank reads a request that was sent: contents."""
        ...

    def hears_end(self, request_id: str, rank: int) -> None:
        """A rank that has read a request hears that it ended."""
        ...

    def give_back(self, request_id: str) -> None:
        """A request ended of which no reader ever hears."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...

    def entries(self) -> Sequence[RingEntry]:
        """The writer's books."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class CachesUnderTest(Protocol):
    """Makes media caches."""

    def mirror(self, capacity_bytes: int) -> MirrorUnderTest:
        """A mirrored processor cache, empty."""
        ...

    def ring(self, size_bytes: int, max_object_bytes: int, num_readers: int) -> RingUnderTest:
        """A shared-memory cache, empty."""
        ...


class ReferenceCaches:
    """The model's, in a dialect."""

    def __init__(self, dialect: Dialect = IDEAL) -> None:
        self._dialect = dialect

    def mirror(self, capacity_bytes: int) -> MirrorUnderTest:
        """A mirrored processor cache."""
        return _Mirror(capacity_bytes, self._dialect)

    def ring(self, size_bytes: int, max_object_bytes: int, num_readers: int) -> RingUnderTest:
        """A shared-memory cache."""
        return _Ring(size_bytes, max_object_bytes, num_readers, self._dialect)


class _Mirror:
    def __init__(self, capacity_bytes: int, dialect: Dialect) -> None:
        self._caches = caches = MirroredCaches(capacity_bytes, dialect)
        self.render, self.refuse = caches.render, caches.reject
        self.reset, self.finish_reset = caches.reset, caches.finish_reset

    def hand_over(self, request_id: str) -> Taken:
        done = self._caches.hand_over(request_id)
        taken = [content_of(one.data) for one in done.features] or [None] * len(done.by_hash)
        return Taken(done.by_hash, taken, done.missing)

    def direct(self, features: Sequence[MediaFeature]) -> Taken:
        by_hash = [False] * len(features)
        try:
            return Taken(by_hash, [content_of(one.data) for one in self._caches.receiver.take(features)])
        except MediaCacheMissError as miss:
            return Taken(by_hash, [None] * len(features), miss.keys)

    def sides(self) -> tuple[CacheSide, CacheSide]:
        return _side(self._caches.sender.cache), _side(self._caches.receiver.cache)


def _side(cache: LruBytes[Any]) -> CacheSide:
    return CacheSide(cache.keys, cache.sizes, cache.used_bytes, cache.capacity_bytes)


class _Ring:
    def __init__(self, size_bytes: int, max_object_bytes: int, num_readers: int, dialect: Dialect) -> None:
        self._sender = sender = ShmSender(size_bytes, max_object_bytes, num_readers, dialect)
        self._readers = [ShmReader(sender.ring.memory, num_readers, dialect) for _ in range(num_readers)]
        self._sent: dict[str, Sequence[MediaFeature]] = {}
        self.reset = sender.reset

    def send(self, request_id: str, features: Sequence[MediaFeature]) -> Sequence[tuple[int, int] | None]:
        sent = self._sent[request_id] = self._sender.take(features)
        return [handle_of(one.data) if one.data is not None and one.data.is_address else None for one in sent]

    def read(self, request_id: str, rank: int) -> Sequence[str | None]:
        return [content_of(one.data) for one in self._readers[rank].receive(request_id, self._sent[request_id])]

    def hears_end(self, request_id: str, rank: int) -> None:
        self._readers[rank].ended(request_id)

    def give_back(self, request_id: str) -> None:
        self._sender.give_back(self._sent[request_id])

    def entries(self) -> Sequence[RingEntry]:
        sender, size = self._sender, self._sender.ring.memory.size_bytes
        return [
            RingEntry(
                "", handle.monotonic_id, handle.address % size, handle.address % size + chunk.total_bytes,
                sender.references[handle.monotonic_id] * sender.num_readers - chunk.acknowledged,
            )
            for handle, chunk in sender.ring.live
        ]  # fmt: skip

    def close(self) -> None:
        """Nothing to give back."""
