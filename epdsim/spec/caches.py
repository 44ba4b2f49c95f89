"""Families MMC and SHM: media caches serve what was sent, both sides alike, and nothing reads what was written over."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import (
    CacheReset,
    CacheSide,
    MediaCachesSeen,
    MediaHandedOver,
    RequestFailed,
    RingRead,
    RingSeen,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


class MmcMirror:
    """MMC-MIRROR."""

    def __init__(self) -> None:
        self._named: dict[str, set[str]] = {}

    def by_kind(self) -> Monitor:
        """Follow each request from attempt to attempt."""
        return {MediaHandedOver: self._handed_over}

    def _handed_over(self, event: MediaHandedOver, _engine: EngineState) -> Iterator[Finding]:
        if event.outcome in ("refused", "lost"):
            return
        name, bare = event.request_id, [one for one in event.items if one.by_hash]
        if bare:
            yield Reached(f"{bare[0].key} goes by hash alone")
        subjects = (name, *(one.key for one in bare))
        if event.outcome == "engine lost":
            yield Broken(f"the engine is lost with a hash of {name} that it cannot resolve", subjects)
            return
        unresolved = [one.key for one in bare if one.got is None]
        if event.outcome == "taken" and unresolved:
            yield Broken(f"{name} is taken, and of {unresolved[0]} the engine has nothing", subjects)
        if event.outcome == "missed" and not {one.key for one in bare} >= set(event.missing):
            yield Broken(f"a miss of {name} names {list(event.missing)}, of which some came with payload", subjects)
        # An item that comes twice in a request brings its payload once.
        again = self._named.pop(name, set[str]()) & {one.key for one in bare}
        again -= {one.key for one in event.items if not one.by_hash}
        if again:
            yield Broken(
                f"attempt {event.attempt} of {name} sends {min(again)} by hash, which has just missed", subjects
            )
        if event.outcome == "missed":
            self._named[name] = set(event.missing)
            if event.attempt > len(event.items) + 1:
                yield Broken(f"attempt {event.attempt} of {name} misses still", subjects)


class MmcServe:
    """MMC-SERVE."""

    def __init__(self) -> None:
        self._capacity_bytes: dict[str, int] = {}

    def by_kind(self) -> Monitor:
        """Look at requests that are larger than the cache, and at those that the front end fails."""
        return {MediaCachesSeen: self._seen, MediaHandedOver: self._handed_over}

    def _seen(self, event: MediaCachesSeen, _engine: EngineState) -> None:
        self._capacity_bytes[event.instance] = event.sender.capacity_bytes

    def _handed_over(self, event: MediaHandedOver, _engine: EngineState) -> Iterator[Finding]:
        if event.is_direct:
            return
        total = sum({one.key: one.num_bytes for one in event.items}.values())
        if total > self._capacity_bytes.get(event.instance, total):
            yield Reached(f"{event.request_id} brings {total} bytes")
        if event.outcome in ("refused", "lost"):
            yield Broken(
                f"{event.request_id}, whose items all come with their payloads, is {event.outcome} at the front end",
                (event.request_id, *(one.key for one in event.items)),
            )


class MmcFresh:
    """MMC-FRESH."""

    def __init__(self) -> None:
        self._content: dict[tuple[str, str], str] = {}
        self._held: dict[str, set[str]] = {}

    def by_kind(self) -> Monitor:
        """Remember what the engine's side holds, and compare it with what comes."""
        return {MediaCachesSeen: self._seen, MediaHandedOver: self._handed_over}

    def _seen(self, event: MediaCachesSeen, _engine: EngineState) -> None:
        self._held[event.instance] = set(event.receiver.held)

    def _handed_over(self, event: MediaHandedOver, _engine: EngineState) -> Iterator[Finding]:
        if event.outcome != "taken":
            return
        held = self._held.get(event.instance, set[str]())
        for one in event.items:
            before = self._content.get((event.instance, one.key))
            if not one.by_hash and one.key in held and before not in (None, one.content):
                yield Reached(f"{one.key} comes with another payload than is held")
            if not one.by_hash and one.got != one.content:
                yield Broken(
                    f"{event.request_id} brings a payload for {one.key}, and the engine takes another one that it held",
                    (event.request_id, one.key),
                )
            if one.got is not None:
                self._content[event.instance, one.key] = one.got


class MmcStruct:
    """MMC-STRUCT."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[CacheSide, CacheSide]] = {}
        self._keys: dict[str, set[str]] = {}

    def by_kind(self) -> Monitor:
        """Look at both sides after each operation."""
        return {MediaHandedOver: self._handed_over, MediaCachesSeen: self._seen}

    def _handed_over(self, event: MediaHandedOver, _engine: EngineState) -> None:
        if event.outcome == "taken":
            self._keys[event.instance] = {one.key for one in event.items}

    def _seen(self, event: MediaCachesSeen, _engine: EngineState) -> Iterator[Finding]:
        sides = event.sender, event.receiver
        before = self._before.get(event.instance)
        for index, (name, side) in enumerate(zip(("front end", "engine"), sides, strict=True)):
            yield from self._sound(name, side)
            if before is None:
                continue
            gone = set(before[index].held) - set(side.held)
            if gone and event.after in ("render", "hand over", "direct"):
                yield Reached(f"{min(gone)} makes room for another on the {name}'s side")
            if event.after == "refuse" and before[index] != side:
                yield Broken(f"the {name}'s cache changes with a request that is refused")
        used = self._keys.pop(event.instance, set[str]()) & set(event.receiver.held)
        if event.after in ("hand over", "direct") and used and event.receiver.order[-1] not in used:
            yield Broken(f"{event.receiver.order[-1]} is the most recent, and {', '.join(sorted(used))} was just used")
        self._before[event.instance] = sides

    def _sound(self, name: str, side: CacheSide) -> Iterator[Finding]:
        order, held = list(side.order), set(side.held)
        if len(order) != len(held) or set(order) != held:
            yield Broken(
                f"the {name}'s cache orders {order} and holds {sorted(held)}", tuple(sorted(held ^ set(order)))
            )
        total = sum(side.held.values())
        if not total == side.used_bytes <= side.capacity_bytes:
            yield Broken(
                f"the {name}'s cache holds {total} bytes, its books say {side.used_bytes}, its budget is {side.capacity_bytes}",
                tuple(order),
            )


class MmcReset:
    """MMC-RESET."""

    def __init__(self) -> None:
        self._happened: dict[str, str] = {}
        self._past_front_end: set[str] = set()

    def by_kind(self) -> Monitor:
        """Compare both sides at quiet moments after a reset or a refusal."""
        return {
            CacheReset: self._reset,
            RequestFailed: self._failed,
            MediaHandedOver: self._handed_over,
            MediaCachesSeen: self._seen,
        }

    def _reset(self, event: CacheReset, _engine: EngineState) -> None:
        if event.which == "media":
            self._happened[event.instance] = "a reset"

    def _failed(self, event: RequestFailed, _engine: EngineState) -> None:
        self._happened[event.instance] = f"the refusal of {event.request_id}"

    def _handed_over(self, event: MediaHandedOver, _engine: EngineState) -> None:
        if event.is_direct:
            self._past_front_end.add(event.instance)
        if event.outcome == "missed":
            # The miss tells the front end what the engine lacks; MMC-MIRROR judges what comes of it.
            self._happened.pop(event.instance, None)

    def _seen(self, event: MediaCachesSeen, _engine: EngineState) -> Iterator[Finding]:
        happened = self._happened.get(event.instance)
        if happened is None or not event.is_quiet or event.instance in self._past_front_end:
            return
        yield Reached(happened)
        ours, theirs = list(event.sender.order), list(event.receiver.order)
        if ours != theirs:
            yield Broken(
                f"after {happened} the front end takes {ours} for cached, and the engine holds {theirs}",
                tuple(sorted(set(ours) ^ set(theirs))),
            )


class ShmSafe:
    """SHM-SAFE."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._has_gone: set[str] = set()

    def by_kind(self) -> Monitor:
        """Look at what readers find, and at the writer's books."""
        return {RingRead: self._read, RingSeen: self._seen}

    def _seen(self, event: RingSeen, _engine: EngineState) -> Iterator[Finding]:
        numbers = {one.number for one in event.entries}
        if self._numbers.get(event.instance, set[int]()) - numbers:
            self._has_gone.add(event.instance)
        self._numbers[event.instance] = numbers
        yield from _overlaps(event)
        for one in event.entries if event.is_quiet else ():
            if one.num_outstanding:
                told = "is pinned for ever" if one.num_outstanding > 0 else "was given back too often"
                yield Broken(
                    f"all requests have ended, and {one.key} {told}: {one.num_outstanding} acknowledgements to come",
                    (one.key,),
                )

    def _read(self, event: RingRead, _engine: EngineState) -> Iterator[Finding]:
        subjects = (event.request_id, *(one.key for one in event.items if one.address is not None))
        if event.instance in self._has_gone and any(one.address is not None for one in event.items):
            yield Reached(f"{event.request_id} is read by address after another object has gone")
        if event.outcome != "read":
            yield Broken(
                f"rank {event.rank} reads {event.request_id}, which is alive, and an address of it is {event.outcome}",
                subjects,
            )
            return
        for one in event.items:
            if one.got != one.content:
                yield Broken(
                    f"rank {event.rank} reads {one.key} of {event.request_id} and finds another item's content",
                    subjects,
                )


def _overlaps(event: RingSeen) -> Iterator[Finding]:
    end, before = 0, ""
    for one in sorted(event.entries, key=lambda entry: entry.start):
        if one.start < end:
            yield Broken(f"{one.key} lies over the end of {before}, which is live", (one.key, before))
        end, before = one.end, one.key
    if end > event.size_bytes:
        yield Broken(f"{before} ends at byte {end} of a ring of {event.size_bytes}", (before,))


PROPERTIES = (
    Property(
        "MMC-MIRROR",
        "If the front end sends an item by hash alone, the engine can resolve it, or the miss is typed and recoverable.",
        "An assertion ends the engine's input thread.",
        "protocol",
        sometimes="an item goes by hash alone",
        evidence=("vLLM PRs 46747, 51897, 31927, 16273",),
        twin="MMC-SERVE",
        monitor=lambda: MmcMirror().by_kind(),
    ),
    Property(
        "MMC-SERVE",
        "A request whose items come with their payloads is served, whatever of them is cached, and however large they are.",
        "A picture fails because of the pictures beside it, and fails again with every retry.",
        "protocol",
        sometimes="a request that is larger than the cache",
        evidence=("vLLM 0.28 and before", "random requests on vLLM 0.32's own caches"),
        twin="MMC-MIRROR",
        monitor=lambda: MmcServe().by_kind(),
    ),
    Property(
        "MMC-FRESH",
        "A payload that is on the wire wins over any cached item with the same key.",
        "Layout of the new item, tensors of the old one.",
        "protocol",
        sometimes="a payload for a key that is held with another one",
        evidence=("vLLM PR 57833",),
        monitor=lambda: MmcFresh().by_kind(),
    ),
    Property(
        "MMC-STRUCT",
        "Caches are sound: keys in order of use are those of the data, eviction makes progress, nobody else changes them.",
        "A cache that cannot evict grows without bound or stands still.",
        "protocol",
        sometimes="an item makes room for another",
        evidence=("vLLM PR 47966",),
        monitor=lambda: MmcStruct().by_kind(),
    ),
    Property(
        "MMC-RESET",
        "Reset, sleep, pause and refusal leave both mirrors in the same state.",
        "The next request with the same item is sent by hash to a side that has forgotten it.",
        "protocol",
        sometimes="no request is under way after a reset or a refusal",
        evidence=("vLLM PRs 33452, 51897, 26406",),
        monitor=lambda: MmcReset().by_kind(),
    ),
    Property(
        "SHM-SAFE",
        "A live handle never refers to overwritten memory, allocations never overlap live data, no entry is pinned for ever.",
        "A worker reads another item's pixels, or the ring fills up and stays full.",
        "protocol",
        sometimes="an item is read by address after another one has gone",
        evidence=("vLLM PRs 27117, 54994, 51897", "vLLM issue 27858"),
        twin="STRIP-HANDLE",
        monitor=lambda: ShmSafe().by_kind(),
    ),
)
