"""What befell media caches in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.events import (
    CachedItem,
    CacheReset,
    CacheSide,
    Event,
    MediaCachesSeen,
    MediaHandedOver,
    RequestFailed,
    RingItem,
    RingRead,
    RingSeen,
    RingSent,
)

_OUTCOMES = {
    "taken": "the engine takes it",
    "refused": "the front end refuses it",
    "lost": "the front end fails it",
    "engine lost": "the engine is lost",
}


def cache_lines(events: Sequence[Event]) -> list[str]:
    """The story of media caches; nothing for runs without."""
    if not any(isinstance(event, MediaCachesSeen | MediaHandedOver | RingSent) for event in events):
        return []
    return [line for event in events for line in _lines(event)]


def _lines(event: Event) -> Iterator[str]:
    match event:
        case MediaHandedOver():
            yield _handed(event)
        case MediaCachesSeen(after="render") if event.sender.order:
            yield f"a request is rendered; the front end takes for cached {_keys(event.sender)}"
        case MediaCachesSeen(after="finish reset"):
            yield f"the engine comes to the reset; its cache holds {_keys(event.receiver)}"
        case MediaCachesSeen(after="hand over" | "direct"):
            yield f"the front end takes for cached {_keys(event.sender)}, the engine holds {_keys(event.receiver)}"
        case CacheReset(which="media"):
            yield "the media cache is reset"
        case RequestFailed():
            yield f"{event.request_id} goes no further ({event.reason})"
        case RingSent():
            yield f"{event.request_id} is sent with {', '.join(map(_sent, event.items))}"
        case RingRead():
            again = " again" if event.is_again else ""
            yield f"rank {event.rank} reads {event.request_id}{again}: {_found(event)}"
        case RingSeen(is_quiet=True):
            yield "every request has ended, and every reader has heard of it"
        case _:
            pass


def _handed(event: MediaHandedOver) -> str:
    items = ", ".join(map(_item, event.items))
    how = "past the front end's cache" if event.is_direct else f"attempt {event.attempt}" if event.attempt > 1 else ""
    outcome = _OUTCOMES.get(event.outcome) or f"it misses {', '.join(event.missing)}"
    return f"{event.request_id} brings {items}{f' ({how})' if how else ''}; {outcome}"


def _item(item: CachedItem) -> str:
    return f"{item.key} by hash alone" if item.by_hash else f"{item.key} of {item.num_bytes} bytes"


def _keys(side: CacheSide) -> str:
    return ", ".join(side.order) or "nothing"


def _sent(item: RingItem) -> str:
    where = "inline" if item.address is None else f"as object {item.number} at address {item.address}"
    return f"{item.key} {where}"


def _found(event: RingRead) -> str:
    if event.outcome != "read":
        return f"an address is {event.outcome}"
    return ", ".join(f"{one.key} has content {one.got}" for one in event.items)
