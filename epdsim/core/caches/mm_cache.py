"""The mirrored processor cache: the front end (P0) knows by heart what the engine (P1) holds, and sends those items by hash only.

Both sides keep items in order of use within the same budget of bytes: the front end sizes alone, the engine the items. Nobody
tells the front end what the engine evicts. It is right only while both sides take the same items in the same order: then they
evict the same. Whatever breaks that order (`core.caches.mm_mirror`) makes them drift apart, and a hash that the engine cannot
resolve is a *miss*: the request fails with the hashes that are missing, the front end forgets them, and the next attempt brings
the payloads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, MediaItem
from epdsim.core.rules import IDEAL, Dialect, Rule

V = TypeVar("V")
SizeOf = Callable[[MediaItem], int]


class MediaCacheMissError(Exception):
    """Items came by hash only and are not there; the request can be sent again with their payloads.

    Args:
        keys: All of them in the request, so that one more attempt is enough.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"not in the engine's media cache: {', '.join(keys)}")
        self.keys = tuple(keys)


class EngineLostError(Exception):
    """The engine ends, and with it every request that it has."""


class ItemLostError(Exception):
    """The front end looked an item up, did not process it, and has it no more: the request fails there."""


def miss_is_typed(keys: Sequence[str]) -> Exception:
    """A miss ends its request and names all that is missing."""
    return MediaCacheMissError(keys)


def miss_ends_engine(keys: Sequence[str]) -> Exception:
    """A miss ends the thread that takes requests in: releases up to 0.27."""
    return EngineLostError(f"an item that came by hash only is not in the engine's media cache: {keys[0]}")


def sent_wins(_cached: MediaItem | None, sent: MediaItem) -> MediaItem:
    """The payload that came is the item."""
    return sent


def cached_wins(cached: MediaItem | None, sent: MediaItem) -> MediaItem:
    """What is held under the key is the item, whatever came: releases up to 0.30."""
    return sent if cached is None else cached


def goes_uncached(key: str, num_bytes: int, capacity_bytes: int) -> None:
    """An item larger than the cache is sent each time and held by neither side."""
    assert num_bytes > capacity_bytes, f"{key!r} fits"


def refuse_large(key: str, num_bytes: int, capacity_bytes: int) -> None:
    """An item larger than the cache fails its request at the front end: releases up to 0.28."""
    raise InputError(f"media item {key!r} of {num_bytes} bytes", f"the processor cache has {capacity_bytes}")


def prompt_order(features: Sequence[MediaFeature]) -> Sequence[int]:
    """Items in order of offset, as the engine takes them."""
    return range(len(features))


def modality_order(features: Sequence[MediaFeature]) -> Sequence[int]:
    """Items modality by modality in order of their first items, as releases 0.25 to 0.33 take them at the front end."""
    first = {feature.modality: index for index, feature in reversed(list(enumerate(features)))}
    return sorted(range(len(features)), key=lambda index: (first[features[index].modality], index))


def serves_looked_up() -> bool:
    """Whether an item that was there when the request came serves it, although the request's new items have pushed it out."""
    return True


def loses_pushed_out() -> bool:
    """It does not: releases 0.25 to 0.33, where the front end fails, as it did not process what it had found."""
    return False


def cache_key(feature: MediaFeature) -> str:
    """The hash of the media; the identifier, which may name an adapter too, only where there is none."""
    return feature.mm_hash or feature.identifier


MISS = Rule(
    "mm_cache.miss",
    "A hash that the engine cannot resolve fails its request alone and names all that is missing, so that one retry brings it.",
    source="vLLM PR 46747",
    ideal=miss_is_typed,
)
FRESH = Rule(
    "mm_cache.fresh",
    "A payload that comes wins over whatever is held under its key.",
    source="vLLM PR 57833",
    ideal=sent_wins,
)
OVERSIZE = Rule(
    "mm_cache.oversize",
    "An item that is larger than the cache is served uncached; neither side holds it.",
    source="vLLM 0.29; up to 0.28 its request fails",
    ideal=goes_uncached,
)
ORDER = Rule(
    "mm_cache.order",
    "Both sides take the items of a request in the same order, that of the prompt.",
    source="MMC-MIRROR on random requests of several modalities; the order of vLLM 0.25 to 0.32 read in their source",
    ideal=prompt_order,
)
PUSHED_OUT = Rule(
    "mm_cache.pushed_out",
    "An item that is there when a request comes serves it, even if other items of the request push it out meanwhile.",
    source="random requests on vLLM 0.32's own caches",
    ideal=serves_looked_up,
)
KEY = Rule(
    "mm_cache.key",
    "The key is the hash of the media, shared by all adapters.",
    source="vLLM PR 31927",
    ideal=cache_key,
)


def item_bytes(item: MediaItem) -> int:
    """Bytes of all tensors."""
    return item.nbytes


class LruBytes(Generic[V]):
    """Values in order of use within a budget of bytes; the one used longest ago goes first.

    Args:
        capacity_bytes: The budget.

    Attributes:
        used_bytes: Of it, never more.
    """

    __slots__ = ("_entries", "capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[str, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def keys(self) -> list[str]:
        """Oldest first."""
        return list(self._entries)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by key, oldest first."""
        return {key: num_bytes for key, (_, num_bytes) in self._entries.items()}

    def get(self, key: str) -> V | None:
        """The value, which is the most recent then; None when there is none."""
        self.touch(key)
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def touch(self, key: str) -> None:
        """Make a key the most recent, if it is there."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def put(self, key: str, value: V, num_bytes: int) -> bool:
        """Add a key that is not there and let old ones go for it; False when it is larger than the budget."""
        assert key not in self._entries, f"{key!r} is there already"
        if num_bytes > self.capacity_bytes:
            return False
        while self.used_bytes + num_bytes > self.capacity_bytes:
            self.drop(next(iter(self._entries)))
        self._entries[key] = value, num_bytes
        self.used_bytes += num_bytes
        return True

    def drop(self, key: str) -> None:
        """Let a key go, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry[1]

    def clear(self) -> None:
        """Let all go."""
        self._entries.clear()
        self.used_bytes = 0


class Side(Generic[V]):
    """What both sides have.

    Args:
        capacity_bytes: The budget; the same on both sides.
        dialect: Rules `mm_cache.*`.
        size_of: Bytes of an item; the same on both sides.

    Attributes:
        cache: By key.
    """

    __slots__ = ("_dialect", "_size_of", "cache")

    def __init__(self, capacity_bytes: int, dialect: Dialect = IDEAL, size_of: SizeOf = item_bytes) -> None:
        self.cache: LruBytes[V] = LruBytes(capacity_bytes)
        self._dialect, self._size_of = dialect, size_of

    def reset(self) -> None:
        """Forget everything."""
        self.cache.clear()


class SenderCache(Side[None]):
    """The front end's side (P0), which has sizes alone.

    Attributes:
        hits: Items that were sent by hash only.
    """

    __slots__ = ("hits",)

    def __init__(self, capacity_bytes: int, dialect: Dialect = IDEAL, size_of: SizeOf = item_bytes) -> None:
        super().__init__(capacity_bytes, dialect, size_of)
        self.hits = 0

    def take(self, features: Sequence[MediaFeature]) -> list[MediaFeature]:
        """A request's items as they are sent: without payload where the engine should hold them.

        All are touched before any is added: a new item pushes out another of its own request only where nothing else is left.

        Args:
            features: In order of offset; payloads may be missing from items that are there.

        Raises:
            InputError: An item has no payload and is not there, or is larger than a cache that takes no such items.
            ItemLostError: An item that was there has been pushed out by others of the request (some releases).
        """
        dialect, cache = self._dialect, self.cache
        keys = [dialect[KEY](feature) for feature in features]
        was_there = [key in cache for key in keys]
        for there, key, feature in zip(was_there, keys, features, strict=True):
            if not there and feature.data is None:
                what = f"{feature.modality} {key!r}"
                raise InputError(what, "it is not in the cache and comes without data", "send the data")
        order = dialect[ORDER](features)
        for index in order:
            cache.touch(keys[index])
        sent = list(features)
        for index in order:
            key = keys[index]
            data = features[index].data
            if key in cache or (was_there[index] and dialect[PUSHED_OUT]()):
                cache.touch(key)
                self.hits += 1
                sent[index] = replace(features[index], data=None)
            elif data is None or was_there[index]:
                raise ItemLostError(f"{key!r} was in the cache when it was looked up and is there no more")
            else:
                self._add(key, data)
        return sent

    def _add(self, key: str, item: MediaItem) -> None:
        num_bytes = self._size_of(item)
        if not self.cache.put(key, None, num_bytes):
            self._dialect[OVERSIZE](key, num_bytes, self.cache.capacity_bytes)

    def invalidate(self, keys: Sequence[str]) -> None:
        """Forget what the engine turned out not to have."""
        for key in keys:
            self.cache.drop(key)

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.hits = 0


class ReceiverCache(Side[MediaItem]):
    """The engine's side (P1), which has the items."""

    __slots__ = ()

    def take(self, features: Sequence[MediaFeature]) -> list[MediaFeature]:
        """A request's items with their payloads.

        Args:
            features: As sent, in order of offset.

        Raises:
            MediaCacheMissError: Items are not there; those that came with a payload are held nevertheless.
            EngineLostError: The same, in a release that cannot say so.
        """
        keys = [self._dialect[KEY](feature) for feature in features]
        serves = self._dialect[PUSHED_OUT]()
        looked_up = {key: self.cache.get(key) for key in keys}
        taken: list[MediaFeature] = []
        missing: list[str] = []
        for key, feature in zip(keys, features, strict=True):
            item = self.cache.get(key) if feature.data is None else self._fresh(key, feature.data)
            if item is None and serves:
                item = looked_up[key]
            if item is None:
                missing.append(key)
            taken.append(replace(feature, data=item))
        if missing:
            raise self._dialect[MISS](missing)
        return taken

    def _fresh(self, key: str, sent: MediaItem) -> MediaItem:
        held = self.cache.get(key)
        item = self._dialect[FRESH](held, sent)
        if held is None or item is not held:
            self.cache.drop(key)
            self.cache.put(key, sent, self._size_of(sent))
        return item
