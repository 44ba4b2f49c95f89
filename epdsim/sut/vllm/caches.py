"""The installed release's own media caches as a system under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epdsim.core.caches.mm_cache import ItemLostError
from epdsim.core.caches.shm_ring import StaleHandleError
from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature
from epdsim.events import CacheSide, RingEntry
from epdsim.sut.caches import Taken
from epdsim.sut.vllm.mirrored_caches import RealMirror, content_of_spec, feature_spec, load_media_caches, real_item
from epdsim.sut.vllm.shared_memory_cache import RealShm, address_of_spec


def vllm_caches() -> VllmCaches | None:
    """The installed release's caches; None when it has others."""
    try:
        load_media_caches()
    except InputError:
        return None
    return VllmCaches()


class VllmCaches:
    """Makes the release's media caches, in this process."""

    def mirror(self, capacity_bytes: int) -> VllmMirror:
        """Its mirrored processor cache."""
        return VllmMirror(capacity_bytes)

    def ring(self, size_bytes: int, max_object_bytes: int, num_readers: int) -> VllmRing:
        """Its shared-memory cache."""
        return VllmRing(size_bytes, max_object_bytes, num_readers)


class VllmMirror:
    """The release's mirrored processor cache; the front end's own failures are told apart from a client's.

    Args:
        capacity_bytes: Of each side.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._real = RealMirror(capacity_bytes)
        self._vllm = load_media_caches()
        self._is_resetting = False

    def render(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Process the items of a request."""
        try:
            self._real.render(request_id, features)
        except AssertionError as error:
            raise ItemLostError(str(error) or "an item that was found is there no more") from error
        except ValueError as error:
            raise InputError(f"request {request_id!r}", str(error)) from error

    def refuse(self, request_id: str) -> None:
        """Refuse it."""
        self._real.reject(request_id)

    def hand_over(self, request_id: str) -> Taken:
        """Give it to the engine."""
        by_hash, contents, missing = self._real.hand_over(request_id)
        return Taken(by_hash, contents or [None] * len(by_hash), missing)

    def direct(self, features: Sequence[MediaFeature]) -> Taken:
        """Give items to the engine's side."""
        specs = [
            feature_spec(self._vllm, one, None if one.data is None else real_item(self._vllm, one.data))
            for one in features
        ]
        taken = self._real.receiver.get_and_update_features(specs)
        return Taken([False] * len(features), [content_of_spec(one) for one in taken])

    def reset(self) -> None:
        """The front end's part."""
        self._real.reset()
        self._is_resetting = True

    def finish_reset(self) -> None:
        """The engine's part."""
        if self._is_resetting:
            self._real.finish_reset()
            self._is_resetting = False

    def sides(self) -> tuple[CacheSide, CacheSide]:
        """Both sides as they are."""
        return _side(self._real.sender), _side(self._real.receiver)


def _side(cache: Any) -> CacheSide:
    lru = cache._cache  # noqa: SLF001 - its books
    held = {key: int(lru.getsizeof(value)) for key, value in lru.cache.items()}
    return CacheSide(list(lru.order), held, int(lru.currsize), int(lru.maxsize))


class VllmRing:
    """The release's shared-memory cache, writer and readers in this process.

    Args:
        size_bytes: Of the ring.
        max_object_bytes: Of an object in it.
        num_readers: Ranks.
    """

    def __init__(self, size_bytes: int, max_object_bytes: int, num_readers: int) -> None:
        self._real = RealShm(size_bytes, max_object_bytes, num_readers)
        self._num_readers = num_readers
        self._sent: dict[str, list[Any]] = {}

    def send(self, request_id: str, features: Sequence[MediaFeature]) -> Sequence[tuple[int, int] | None]:
        """A request's items as they are sent."""
        sent = self._sent[request_id] = self._real.send(features)
        return [address_of_spec(one) for one in sent]

    def read(self, request_id: str, rank: int) -> Sequence[str | None]:
        """A rank reads it."""
        try:
            return self._real.receive(rank, self._sent[request_id])
        except ValueError as error:
            if "modified or is invalid" in str(error):
                raise StaleHandleError(str(error)) from error
            raise

    def hears_end(self, request_id: str, rank: int) -> None:
        """The release acknowledges when it reads."""

    def give_back(self, request_id: str) -> None:
        """The release has no way to."""

    def reset(self) -> None:
        """Forget everything."""
        self._real.reset()

    def entries(self) -> Sequence[RingEntry]:
        """The writer's books, and what its memory says of each object."""
        store = self._real.sender._shm_cache  # noqa: SLF001 - its books
        ring, found = store.ring_buffer, list[RingEntry]()
        for number, address in ring.metadata.items():
            with ring.access_buf(address) as (view, (_, total_bytes)):
                acknowledged = ring.byte2int(view[: store.flag_bytes])
            start = address % ring.data_buffer_size
            outstanding = store.writer_flag.get(number, 0) * self._num_readers - acknowledged
            found.append(RingEntry("", number, start, start + total_bytes, outstanding))
        return found

    def close(self) -> None:
        """Give the segment back."""
        self._real.close()
