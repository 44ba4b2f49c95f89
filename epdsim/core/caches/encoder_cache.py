"""The encoder cache: which embeddings the workers hold, who still needs them, and what must go when room is needed.

Capacity is counted in embeddings. An entry without references stays until its room is needed; the one that has been without
references longest goes first. The scheduler only keeps the books: workers hold the tensors and drop those that a step names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.rules import Dialect, Rule


def is_last_occurrence(identifier: str, still_held: Iterable[str]) -> bool:
    """Whether giving up one occurrence of an item gives up the request's reference to its entry."""
    return identifier not in still_held


def any_occurrence(_identifier: str, _still_held: Iterable[str]) -> bool:
    """Every occurrence does, so that the entry can go while the request still needs it: releases up to 0.28."""
    return True


def credit_of_entry(cached_num_embeds: int, _position: PlaceholderRange) -> int:
    """Room that an entry without references gives back when it goes."""
    return cached_num_embeds


def credit_of_item(_cached_num_embeds: int, position: PlaceholderRange) -> int:
    """The room of the item that was given up last, whatever the entry takes: releases up to 0.30."""
    return position.num_embeds


def counts_differ(cached_num_embeds: int, num_embeds: int) -> bool:
    """Whether a cached entry must not serve an item, because it holds another number of embeddings."""
    return cached_num_embeds != num_embeds


def never_differ(_cached_num_embeds: int, _num_embeds: int) -> bool:
    """No look at the numbers: releases up to 0.30."""
    return False


def reported_freed(freed: Sequence[str], cached: Collection[str]) -> list[str]:
    """Which of the entries evicted since the last step the workers must drop."""
    return [identifier for identifier in freed if identifier not in cached]


def all_freed(freed: Sequence[str], _cached: Collection[str]) -> list[str]:
    """All of them, those that were encoded again since among them: releases up to 0.27."""
    return list(freed)


def slots_of(position: PlaceholderRange) -> int:
    """Room that an item takes."""
    return position.num_embeds


LAST_OCCURRENCE = Rule(
    "encoder_cache.last_occurrence",
    "A request that uses an item several times holds its entry until the last occurrence is past.",
    source="vLLM PR 54284; in releases from 0.29 on",
    ideal=is_last_occurrence,
)
MISMATCH = Rule(
    "encoder_cache.mismatch",
    "An entry never serves an item of the same identifier that needs another number of embeddings; that request fails alone.",
    source="vLLM PR 57696 (issue 55547); in releases from 0.31 on",
    ideal=counts_differ,
)
FREED_REPORT = Rule(
    "encoder_cache.freed_report",
    "An entry that is evicted and encoded again in one step is not reported as freed.",
    source="ENC-MIRROR; in vLLM from 0.28 on",
    ideal=reported_freed,
)
CREDIT = Rule(
    "encoder_cache.credit",
    "An entry gives back the room that it took, whichever item was the last to use it.",
    source="vLLM PR 57696; in releases from 0.31 on",
    ideal=credit_of_entry,
)
ITEM_SLOTS = Rule(
    "encoder_cache.item_slots",
    "An item takes as many slots as it has embeddings, not as many as its span is long.",
    source="vLLM PR 30475",
    ideal=slots_of,
)


class EncoderCache:
    """Books of the encoder cache.

    Args:
        capacity: Embeddings that fit.
        dialect: Rules `encoder_cache.*`.

    Attributes:
        num_free: Slots that hold nothing.
        num_freeable: Slots that hold nothing, or an entry without references.
    """

    __slots__ = (
        "_credit",
        "_freeable",
        "_freed",
        "_freed_report",
        "_held",
        "_is_last",
        "_num_embeds",
        "_users",
        "capacity",
        "num_free",
        "num_freeable",
    )

    def __init__(self, capacity: int, dialect: Dialect) -> None:
        self.capacity = capacity
        self.num_free: int = capacity
        self.num_freeable: int = capacity
        self._is_last = dialect[LAST_OCCURRENCE]
        self._freed_report = dialect[FREED_REPORT]
        self._credit = dialect[CREDIT]
        self._users: dict[str, set[str]] = {}
        self._num_embeds: dict[str, int] = {}
        # A set of small integers iterates in the same order in every process, and the release frees in that order.
        self._held: dict[str, set[int]] = {}
        self._freeable: OrderedDict[str, int] = OrderedDict()
        self._freed: list[str] = []

    @property
    def entries(self) -> Mapping[str, int]:
        """Embeddings by identifier of the entry."""
        return self._num_embeds

    def users(self, identifier: str) -> Collection[str]:
        """Ids of the requests that hold a reference to an entry."""
        return self._users.get(identifier, ())

    def held(self, request_id: str) -> Collection[int]:
        """Items of a request whose entries it holds."""
        return self._held.get(request_id, ())

    def reference(self, request_id: str, features: Sequence[MediaFeature], index: int) -> bool:
        """Hold the entry of item `index`, if there is one."""
        identifier = features[index].identifier
        users = self._users.get(identifier)
        if users is None:
            return False
        if not users:
            self.num_freeable -= self._freeable.pop(identifier)
        users.add(request_id)
        self._held.setdefault(request_id, set()).add(index)
        return True

    def make_room(self, num_embeds: int) -> bool:
        """Evict entries without references, oldest first, until enough slots are free; False and nothing done if never.

        Args:
            num_embeds: Slots that must be free.
        """
        if num_embeds > self.num_free:
            if num_embeds > self.num_freeable:
                return False
            while num_embeds > self.num_free:
                identifier, freed = self._freeable.popitem(last=False)
                del self._users[identifier], self._num_embeds[identifier]
                self._freed.append(identifier)
                self.num_free += freed
        return True

    def allocate(self, request_id: str, features: Sequence[MediaFeature], index: int, num_embeds: int) -> None:
        """Take the room for item `index`, which `make_room` made, and hold it."""
        assert num_embeds <= self.num_free, "make_room comes first"
        identifier = features[index].identifier
        self._num_embeds[identifier] = num_embeds
        self._users.setdefault(identifier, set()).add(request_id)
        self._held.setdefault(request_id, set()).add(index)
        self.num_free -= num_embeds
        self.num_freeable -= num_embeds

    def release(self, request_id: str, features: Sequence[MediaFeature], index: int) -> None:
        """Give up item `index`; its entry stays until the room is needed."""
        held = self._held.get(request_id)
        if held is not None:
            held.discard(index)
            if not held:
                del self._held[request_id]
                held = None
        identifier = features[index].identifier
        users = self._users.get(identifier)
        if not users or not self._is_last(identifier, [features[other].identifier for other in held or ()]):
            return
        users.discard(request_id)
        if not users:
            num_embeds = self._credit(self._num_embeds[identifier], features[index].position)
            self._freeable[identifier] = num_embeds
            self.num_freeable += num_embeds

    def release_past(self, request_id: str, features: Sequence[MediaFeature], num_tokens: int) -> Sequence[int]:
        """Give up all items that end within the first `num_tokens` tokens; which they are."""
        past = [one for one in self._held.get(request_id, ()) if features[one].position.end <= num_tokens]
        for index in past:
            self.release(request_id, features, index)
        return past

    def release_all(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Give up all items of a request."""
        for index in list(self._held.get(request_id, ())):
            self.release(request_id, features, index)

    def forget(self, identifier: str) -> None:
        """Drop an entry that nobody holds and that was never computed, so that workers need not hear of it."""
        num_embeds = self._freeable.pop(identifier)
        del self._users[identifier], self._num_embeds[identifier]
        self.num_free += num_embeds

    def take_freed(self) -> list[str]:
        """Identifiers that workers must drop, in order of eviction; asked once per step."""
        if not self._freed:
            return []
        freed, self._freed = self._freed, []
        return self._freed_report(freed, self._users)

    def reset(self) -> None:
        """Forget everything: the weights have changed."""
        for table in (self._users, self._num_embeds, self._held, self._freeable, self._freed):
            table.clear()
        self.num_free = self.num_freeable = self.capacity

    def clone(self) -> EncoderCache:
        """An independent copy."""
        other = object.__new__(EncoderCache)
        self._copy_to(other)
        return other

    def _copy_to(self, other: EncoderCache) -> None:
        other.capacity, other.num_free, other.num_freeable = self.capacity, self.num_free, self.num_freeable
        other._is_last, other._freed_report, other._credit = self._is_last, self._freed_report, self._credit
        other._users = {identifier: set(users) for identifier, users in self._users.items()}
        other._num_embeds = dict(self._num_embeds)
        other._held = {request_id: set(held) for request_id, held in self._held.items()}
        other._freeable = OrderedDict(self._freeable)
        other._freed = list(self._freed)

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what it does next."""
        users = sorted(
            (identifier, self._num_embeds[identifier], sorted(users)) for identifier, users in self._users.items()
        )
        held = sorted((request_id, sorted(items)) for request_id, items in self._held.items())
        return repr(users), repr(held), tuple(self._freeable), tuple(self._freed), self.num_free
