"""Plays a sequence of operations to media caches and tells as events what they did."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.caches.mm_cache import EngineLostError, ItemLostError
from epdsim.core.caches.shm_ring import DamagedObjectError, StaleHandleError
from epdsim.core.errors import InputError
from epdsim.events import (
    CachedItem,
    CacheReset,
    MediaCachesSeen,
    MediaHandedOver,
    RequestFailed,
    RingEntry,
    RingItem,
    RingRead,
    RingSeen,
    RingSent,
    Sink,
)
from epdsim.sut.cache_cases import CacheItem, CacheOperation, MirrorCase, RingCase, features_of_items
from epdsim.sut.caches import MirrorUnderTest, RingUnderTest, Taken

INSTANCE = "caches"
_REFUSED = "refused after it was rendered"


def play_mirror(case: MirrorCase, caches: MirrorUnderTest, sink: Sink) -> None:
    """Play operations to a mirrored cache; a request that misses is sent again at once, as a client does."""
    play = _MirrorPlay(caches, sink)
    for operation in case.operations:
        if not play.do(operation):
            return


class _MirrorPlay:
    def __init__(self, caches: MirrorUnderTest, sink: Sink) -> None:
        self._caches, self._sink = caches, sink
        self._open: dict[str, list[CacheItem]] = {}
        self._is_resetting = False
        self._number = 0

    def do(self, operation: CacheOperation) -> bool:
        """One operation; False when the engine is gone."""
        name, is_open = operation.request, operation.request in self._open
        match operation.do:
            case "render" if not is_open:
                self._render(name, operation.items, 1)
            case "hand over" if is_open:
                return self._hand_over(name)
            case "refuse" if is_open:
                self._caches.refuse(name)
                del self._open[name]
                self._sink(RequestFailed(self._number, INSTANCE, name, _REFUSED, refused=True))
            case "direct" if not is_open:
                taken = self._caches.direct(features_of_items(operation.items))
                self._handed(name, operation.items, taken, is_direct=True)
            case "reset":
                self._caches.reset()
                self._is_resetting = True
                self._sink(CacheReset(self._number, INSTANCE, "media"))
            case "finish reset" if self._is_resetting:
                self._caches.finish_reset()
                self._is_resetting = False
            case _:
                return True
        self._seen(operation.do)
        return True

    def _render(self, name: str, items: list[CacheItem], attempt: int) -> bool:
        try:
            self._caches.render(name, features_of_items(items))
        except (InputError, ItemLostError) as error:
            self._failed(name, items, attempt, error)
            return False
        self._open[name] = items
        return True

    def _hand_over(self, name: str) -> bool:
        items, attempt = self._open.pop(name), 1
        while True:
            try:
                taken = self._caches.hand_over(name)
            except EngineLostError:
                told = [_told(one) for one in items]
                self._sink(MediaHandedOver(self._number, INSTANCE, name, told, "engine lost", (), attempt))
                return False
            except (InputError, ItemLostError) as error:
                self._failed(name, items, attempt, error)
                break
            self._handed(name, items, taken, attempt=attempt)
            attempt += 1
            # As many as bring every item, and one more.
            if not taken.missing or attempt > len(items) + 2 or not self._render(name, items, attempt):
                break
        self._open.pop(name, None)
        self._seen("hand over")
        return True

    def _failed(self, name: str, items: Sequence[CacheItem], attempt: int, error: Exception) -> None:
        outcome = "refused" if isinstance(error, InputError) else "lost"
        self._sink(MediaHandedOver(self._number, INSTANCE, name, [_told(one) for one in items], outcome, (), attempt))
        self._sink(RequestFailed(self._number, INSTANCE, name, str(error), refused=True))

    def _handed(
        self, name: str, items: Sequence[CacheItem], taken: Taken, *, attempt: int = 1, is_direct: bool = False
    ) -> None:
        told = [
            _told(one, by_hash=by_hash, got=got)
            for one, by_hash, got in zip(items, taken.by_hash, taken.contents, strict=True)
        ]
        outcome = "missed" if taken.missing else "taken"
        self._sink(MediaHandedOver(self._number, INSTANCE, name, told, outcome, taken.missing, attempt, is_direct))

    def _seen(self, after: str) -> None:
        is_quiet = not self._open and not self._is_resetting
        self._sink(MediaCachesSeen(self._number, INSTANCE, after, *self._caches.sides(), is_quiet))
        self._number += 1


def _told(item: CacheItem, *, by_hash: bool = False, got: str | None = None) -> CachedItem:
    return CachedItem(item.key, str(item.content), item.num_bytes, by_hash, got)


def play_ring(case: RingCase, ring: RingUnderTest, sink: Sink) -> None:
    """Play operations to a shared-memory cache, then end every request."""
    play = _RingPlay(case, ring, sink)
    try:
        for operation in case.operations:
            play.do(operation)
        play.end_all()
    finally:
        ring.close()


class _RingPlay:
    def __init__(self, case: RingCase, ring: RingUnderTest, sink: Sink) -> None:
        self._size, self._ring, self._sink = case.size_bytes, ring, sink
        self._num_readers = case.num_readers
        self._sent: dict[str, list[RingItem]] = {}
        self._heard: dict[str, set[int]] = {}
        self._key_of: dict[int, str] = {}
        self._number = 0

    def do(self, operation: CacheOperation) -> None:
        """One operation."""
        name, is_sent = operation.request, operation.request in self._sent
        match operation.do:
            case "send" if not is_sent:
                self._send(name, operation.items)
            case "read" if is_sent:
                self._read(name)
            case "end" if is_sent:
                self._end(name)
            case "reset":
                self._ring.reset()
                self._sink(CacheReset(self._number, INSTANCE, "media"))
            case _:
                return
        self._seen()

    def end_all(self) -> None:
        """Nothing more is to come."""
        for name in list(self._sent):
            self._end(name)
        self._seen(is_quiet=True)

    def _send(self, name: str, items: Sequence[CacheItem]) -> None:
        places = self._ring.send(name, features_of_items(items))
        told = [
            RingItem(one.key, str(one.content), *(place or (None, None)))
            for one, place in zip(items, places, strict=True)
        ]
        self._key_of |= {one.number: one.key for one in told if one.number is not None}
        self._sent[name] = told
        self._sink(RingSent(self._number, INSTANCE, name, told))

    def _read(self, name: str) -> None:
        """Every rank, for a step is broadcast to all."""
        for rank in range(self._num_readers):
            items, outcome = self._sent[name], "read"
            try:
                found = self._ring.read(name, rank)
            except (StaleHandleError, DamagedObjectError) as error:
                outcome = "stale" if isinstance(error, StaleHandleError) else "damaged"
            else:
                items = [
                    RingItem(one.key, one.content, one.address, one.number, got)
                    for one, got in zip(items, found, strict=True)
                ]
            heard = self._heard.setdefault(name, set())
            self._sink(RingRead(self._number, INSTANCE, name, rank, items, outcome, rank in heard))
            heard.add(rank)

    def _end(self, name: str) -> None:
        heard = self._heard.pop(name, set())
        if not heard:
            self._ring.give_back(name)
        for rank in sorted(heard):
            self._ring.hears_end(name, rank)
        del self._sent[name]

    def _seen(self, *, is_quiet: bool = False) -> None:
        entries = [
            RingEntry(self._key_of.get(one.number, ""), one.number, one.start, one.end, one.num_outstanding)
            for one in self._ring.entries()
        ]
        self._sink(RingSeen(self._number, INSTANCE, self._size, entries, is_quiet))
        self._number += 1
