"""The shared-memory media cache: items lie once in a ring, and requests carry their addresses.

The front end writes an item when it first comes and gives out its address each time it comes again; each address given out is a
*reference*. Every rank of the engine reads the item when the request is broadcast and acknowledges the reference. The ring's oldest
item goes when room is needed and every reader has acknowledged every reference to it; what does not fit, or is larger than an
object may be, travels inline. So acquires and releases must balance (STRIP-HANDLE): one acknowledgement too few pins the item and
all behind it for ever, one too many lets an item go that somebody has yet to read (SHM-SAFE).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from epdsim.core.caches.mm_cache import KEY, ORDER, SizeOf, item_bytes
from epdsim.core.caches.shm_ring import Chunk, Handle, Memory, ShmRing, StaleHandleError
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem
from epdsim.core.rules import IDEAL, Dialect, Rule

COUNTER_BYTES = 4
"""Acknowledgements, in front of each object (vLLM PR 20452)."""


def acknowledged_at_end() -> bool:
    """Whether a reader acknowledges a reference once, when the request that brought it has ended."""
    return True


def acknowledged_on_read() -> bool:
    """It acknowledges every time that it reads, so that a request that is sent again counts again: releases 0.25 to 0.33."""
    return False


def gives_back() -> bool:
    """Whether references of requests that no reader ever hears of are given back."""
    return True


def keeps_reference() -> bool:
    """They are not: releases 0.25 to 0.33, where such an item and all behind it stay for ever."""
    return False


def touch_protects() -> bool:
    """Whether a look-up only keeps the item from going until the request is through."""
    return True


def touch_counts() -> bool:
    """It is counted as a reference, which readers that come late acknowledge and early ones do not: releases up to 0.31."""
    return False


def reset_waits(_ring: ShmRing) -> bool:
    """A reset forgets keys; items with references stay until they are acknowledged. Whether all else is to be forgotten too."""
    return False


def reset_drops(ring: ShmRing) -> bool:
    """It forgets the items, so that requests on their way find nothing: release 0.32 and, so far, 0.33."""
    ring.clear()
    return True


def reset_restarts(ring: ShmRing) -> bool:
    """It numbers items from 0 again too, so that an old address may name another item: releases up to 0.31."""
    ring.clear(restart_ids=True)
    return True


ACKNOWLEDGE = Rule(
    "shm_cache.acknowledge",
    "A reader acknowledges each reference once, when the request that brought it has ended and can ask for it no more.",
    source="STRIP-HANDLE and SHM-SAFE on runs of the model (vLLM PR 54994 with a v2 runner's resume)",
    ideal=acknowledged_at_end,
)
GIVE_BACK = Rule(
    "shm_cache.give_back",
    "A reference of a request that ends before any reader hears of it is given back.",
    source="vLLM PR 51897 (rollback by address and number), closed unmerged",
    ideal=gives_back,
)
TOUCH = Rule(
    "shm_cache.touch",
    "Looking an item up protects it for that request and changes no count.",
    source="vLLM 0.32; before, counts of writer and readers could differ for ever",
    ideal=touch_protects,
)
SHM_RESET = Rule(
    "shm_cache.reset",
    "After a reset an address given out before still holds its item until it is acknowledged, and never another one.",
    source="MMC-RESET and SHM-SAFE; vLLM PRs 26406 and 20452",
    ideal=reset_waits,
)


def address_item(handle: Handle) -> MediaItem:
    """The item that travels in place of a payload."""
    fields = {"address": handle.address, "monotonic_id": handle.monotonic_id}
    return MediaItem({name: Field(number, BatchedKind()) for name, number in fields.items()})


def handle_of(item: MediaItem) -> Handle:
    """Where an address item points."""
    address, number = item.fields["address"].data, item.fields["monotonic_id"].data
    assert isinstance(address, int)
    assert isinstance(number, int)
    return Handle(address, number)


class ShmSender:
    """The front end's side, the only writer.

    Args:
        size_bytes: Of the ring.
        max_object_bytes: Of the largest item that goes into it.
        num_readers: Ranks of the engine.
        dialect: Rules `shm_cache.*`.
        size_of: Bytes of an item in the ring, without counter and header.

    Attributes:
        ring: The writer's books; `ring.memory` is what readers attach to.
        num_readers: Ranks of the engine.
        references: Addresses given out and not given back, by number of the item.
    """

    __slots__ = (
        "_dialect",
        "_index",
        "_key_of",
        "_max_bytes",
        "_protected",
        "_size_of",
        "num_readers",
        "references",
        "ring",
    )

    def __init__(
        self,
        size_bytes: int,
        max_object_bytes: int,
        num_readers: int,
        dialect: Dialect = IDEAL,
        size_of: SizeOf = item_bytes,
    ) -> None:
        if num_readers < 1:
            raise InputError(f"num_readers {num_readers}", "somebody must read")
        self.ring = ShmRing(size_bytes, dialect)
        self.num_readers = num_readers
        self.references: dict[int, int] = {}
        self._dialect = dialect
        self._max_bytes = max_object_bytes
        self._size_of = size_of
        self._index: dict[str, Handle] = {}
        self._key_of: dict[int, str] = {}
        self._protected: set[int] = set()

    @property
    def keys(self) -> list[str]:
        """Keys whose items are there, oldest first."""
        return [key for key, _, _ in self.entries]

    @property
    def entries(self) -> list[tuple[str, Handle, Chunk]]:
        """Key, place and object of the items that are there, oldest first."""
        named = ((self._key_of[handle.monotonic_id], handle, chunk) for handle, chunk in self.ring.live)
        return [entry for entry in named if self._index.get(entry[0]) == entry[1]]

    @property
    def num_outstanding(self) -> int:
        """Acknowledgements that are still to come, over all items; less than nothing when there were too many (STRIP-HANDLE)."""
        return sum(
            self.references[chunk.monotonic_id] * self.num_readers - chunk.acknowledged for _, chunk in self.ring.live
        )

    def is_cached(self, key: str) -> bool:
        """Whether an item is there."""
        return key in self._index

    def take(self, features: Sequence[MediaFeature]) -> list[MediaFeature]:
        """A request's items as they are sent: addresses, and payloads that found no room.

        Args:
            features: In order of offset; payloads may be missing from items that are there.

        Raises:
            InputError: An item has no payload and is not there.
        """
        keys = [self._dialect[KEY](feature) for feature in features]
        for key, feature in zip(keys, features, strict=True):
            if feature.data is None and key not in self._index:
                what = f"{feature.modality} {key!r}"
                raise InputError(what, "it is not in the cache and comes without data", "send the data")
        for key in keys:
            self._touch(key)
        sent = list(features)
        for index in self._dialect[ORDER](features):
            sent[index] = replace(features[index], data=self._sent(keys[index], features[index].data))
        self._protected.clear()
        return sent

    def give_back(self, features: Sequence[MediaFeature]) -> None:
        """Take back what was sent for a request of which no reader ever hears: refused, or ended while it waited."""
        if self._dialect[GIVE_BACK]():
            for feature in features:
                if feature.data is not None and feature.data.is_address:
                    self._release(handle_of(feature.data).monotonic_id)

    def reset(self) -> None:
        """Forget everything (vLLM's `reset_mm_cache`)."""
        self._index.clear()
        self._protected.clear()
        if self._dialect[SHM_RESET](self.ring):
            self._key_of.clear()
            self.references.clear()

    def _touch(self, key: str) -> None:
        handle = self._index.get(key)
        if handle is None:
            return
        if self._dialect[TOUCH]():
            self._protected.add(handle.monotonic_id)
        else:
            self.references[handle.monotonic_id] += 1

    def _sent(self, key: str, data: MediaItem | None) -> MediaItem | None:
        handle = self._index.get(key)
        if handle is None:
            handle = None if data is None else self._put(key, data)
            return data if handle is None else address_item(handle)
        self.references[handle.monotonic_id] += 1
        self._protected.discard(handle.monotonic_id)
        return address_item(handle)

    def _put(self, key: str, item: MediaItem) -> Handle | None:
        """Write an item; None when it must travel inline."""
        num_bytes = self._size_of(item) + COUNTER_BYTES
        if num_bytes > self._max_bytes:
            return None
        handle = self.ring.allocate(num_bytes, item)
        if handle is None:
            # Twice the largest object, since what becomes free may lie at both ends of the ring.
            for number in self.ring.reclaim(self._is_free, 2 * self._max_bytes):
                self._forget(number)
            handle = self.ring.allocate(num_bytes, item)
        if handle is None:
            return None
        self.references[handle.monotonic_id] = 1
        self._index[key] = handle
        self._key_of[handle.monotonic_id] = key
        return handle

    def _is_free(self, chunk: Chunk) -> bool:
        number = chunk.monotonic_id
        return number not in self._protected and chunk.acknowledged >= self.references[number] * self.num_readers

    def _forget(self, number: int) -> None:
        key = self._key_of.pop(number)
        if key in self._index and self._index[key].monotonic_id == number:
            del self._index[key]
        del self.references[number]

    def _release(self, number: int) -> None:
        if number in self.references:
            self.references[number] -= 1


class ShmReader:
    """One rank's side.

    Args:
        memory: The sender's.
        num_readers: Ranks of the engine.
        dialect: Rules `shm_cache.*`.
    """

    __slots__ = ("_dialect", "_memory", "_num_readers", "_pending")

    def __init__(self, memory: Memory, num_readers: int, dialect: Dialect = IDEAL) -> None:
        self._memory = memory
        self._num_readers = num_readers
        self._dialect = dialect
        self._pending: dict[str, dict[int, Handle]] = {}

    def receive(self, request_id: str, features: Sequence[MediaFeature]) -> list[MediaFeature]:
        """Features with payloads in place of addresses; what has no address stays as it is.

        Raises:
            StaleHandleError: An address does not hold its item any more.
            DamagedObjectError: It holds a part of it, which no reader could see.
        """
        handles = {
            index: handle_of(one.data)
            for index, one in enumerate(features)
            if one.data is not None and one.data.is_address
        }
        for handle in handles.values():
            chunk = self._memory.read(handle)
            if not self._dialect[TOUCH]() and chunk.acknowledged >= self._num_readers:
                chunk.acknowledged += 1
        received = list(features)
        at_end = self._dialect[ACKNOWLEDGE]()
        for index, handle in handles.items():
            chunk = self._memory.read(handle)
            received[index] = replace(features[index], data=chunk.item)
            chunk.acknowledged += not at_end
        if at_end and handles:
            self._pending.setdefault(request_id, {}).update(handles)
        return received

    def ended(self, request_id: str) -> None:
        """A request has ended and will not be asked for again."""
        for handle in self._pending.pop(request_id, {}).values():
            with suppress(StaleHandleError):  # a reset that waits for nobody
                self._memory.read(handle).acknowledged += 1
