"""What media caches did: the mirrored processor cache of a front end (P0) and its engine (P1), and the shared-memory ring.

Content is told as a word that stands for it: equal words mean equal bytes. One request may be sent again after a miss; each attempt
is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epdsim.events.base import Event


class CachedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a request on its way through the mirrored cache.

    Attributes:
        key: Under which both sides hold it.
        content: What the client sent.
        num_bytes: Of its payload.
        by_hash: Whether it went to the engine without its payload.
        got: The content that the engine has of it; None when it has none.
    """

    key: str
    content: str
    num_bytes: int
    by_hash: bool = False
    got: str | None = None


class MediaHandedOver(Event, frozen=True):
    """A front end handed the items of a request to an engine, or could not.

    Attributes:
        items: In order of offset.
        outcome: `"taken"`, `"missed"` (fails this request and says so), `"refused"` (an error of the client's), `"lost"` (the front
            end failed the request, by no fault of the client's) or `"engine lost"`.
        missing: Keys that a miss names.
        attempt: Counted from 1; a further one follows a miss.
        is_direct: Whether it came to the engine past the front end's cache, all items with their payloads.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    items: Sequence[CachedItem]
    outcome: str
    missing: Sequence[str] = ()
    attempt: int = 1
    is_direct: bool = False


class CacheSide(msgspec.Struct, frozen=True):
    """One side of the mirrored cache.

    Attributes:
        order: Its keys in order of use, oldest first.
        held: Bytes by key, of what it holds.
        used_bytes: In its own books.
        capacity_bytes: The budget.
    """

    order: Sequence[str]
    held: Mapping[str, int]
    used_bytes: int
    capacity_bytes: int


class MediaCachesSeen(Event, frozen=True):
    """Both sides of the mirrored cache, after something happened.

    Attributes:
        after: `"render"`, `"hand over"`, `"refuse"`, `"reset"`, `"finish reset"` or `"direct"`.
        is_quiet: Whether no request is between the sides and no reset is under way.
    """

    is_detail: ClassVar[bool] = True

    after: str
    sender: CacheSide
    receiver: CacheSide
    is_quiet: bool


class RingItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a request on its way through the ring.

    Attributes:
        address: Where it lies; None when its payload travels inline.
        number: The object's, which no other object has.
        got: The content that a reader found.
    """

    key: str
    content: str
    address: int | None = None
    number: int | None = None
    got: str | None = None


class RingSent(Event, frozen=True):
    """The writer of a ring sent a request's items as addresses or inline."""

    is_detail: ClassVar[bool] = True

    request_id: str
    items: Sequence[RingItem]


class RingRead(Event, frozen=True):
    """A rank read a request's items.

    Attributes:
        outcome: `"read"`, `"stale"` (an address does not hold its object any more) or `"damaged"`.
        is_again: Whether it had read them before: the request was preempted and broadcast anew.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    rank: int
    items: Sequence[RingItem]
    outcome: str
    is_again: bool = False


class RingEntry(msgspec.Struct, frozen=True):
    """One object of a ring in its writer's books: bytes `[start, end)`, and acknowledgements still to come, of all readers."""

    key: str
    number: int
    start: int
    end: int
    num_outstanding: int


class RingSeen(Event, frozen=True):
    """The writer's books after something happened.

    Attributes:
        entries: Oldest first.
        is_quiet: Whether every request has ended and every reader has heard of it.
    """

    is_detail: ClassVar[bool] = True

    size_bytes: int
    entries: Sequence[RingEntry]
    is_quiet: bool = False
