"""Cases of media caches: sequences of operations, as data that can be kept, shrunk and played again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle


class CacheItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a request.

    Attributes:
        content: What its bytes are, from 0 to 255; a key may stand for several, as a client's own identifiers do.
    """

    key: str
    content: int
    num_bytes: int
    modality: str = "image"

    def item(self) -> MediaItem:
        """As the core has it."""
        handle = TensorHandle("uint8", (self.num_bytes,), digest=str(self.content))
        return MediaItem({"pixel_values": Field(handle, BatchedKind())})


class CacheOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation; one that its place in the sequence makes meaningless is passed over.

    Attributes:
        do: On a mirrored cache `"render"`, `"hand over"`, `"refuse"`, `"reset"`, `"finish reset"` or `"direct"`; on a ring
            `"send"`, `"read"`, `"end"` or `"reset"`.
        request: Whose; a new one for render, direct and send.
        items: Of a new request.
        rank: The reader.
    """

    do: str
    request: str = ""
    items: list[CacheItem] = []
    rank: int = 0


class MirrorCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="mirror"):
    """Operations on a mirrored processor cache."""

    capacity_bytes: int
    operations: list[CacheOperation]


class RingCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="ring"):
    """Operations on a shared-memory cache; in the end every request ends, and every reader hears of it."""

    size_bytes: int
    max_object_bytes: int
    num_readers: int
    operations: list[CacheOperation]


def features_of_items(items: Sequence[CacheItem]) -> list[MediaFeature]:
    """The items of a request, in order of offset."""
    return [
        MediaFeature(one.modality, one.key, PlaceholderRange(10 * place, 4), one.item(), one.key)
        for place, one in enumerate(items)
    ]


def content_of(item: MediaItem | None) -> str | None:
    """The content of an item; None when it is not there or is an address."""
    handle = None if item is None or "pixel_values" not in item.fields else item.fields["pixel_values"].data
    return handle.digest if isinstance(handle, TensorHandle) else None
