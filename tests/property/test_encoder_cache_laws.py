"""The books of the encoder cache beside plain ones: a list of entries, and who holds which item."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epdsim.core.caches.encoder_cache import EncoderCache
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.rules import IDEAL

SIZES = {"a": 1, "b": 2, "c": 3, "d": 4}
REQUESTS = ("r", "s", "t")
Features = list[MediaFeature]


def features_of(identifiers: list[str]) -> Features:
    """Items one after the other."""
    features: Features = []
    for identifier in identifiers:
        start = features[-1].position.end if features else 0
        features.append(MediaFeature("image", identifier, PlaceholderRange(start, SIZES[identifier])))
    return features


class PlainCache:
    """Entries in no order but that of losing their last user; nothing is counted twice."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[str] = []
        self.held: set[tuple[str, int, str]] = set()
        self.unused: list[str] = []
        self.freed: list[str] = []

    @property
    def num_free(self) -> int:
        return self.capacity - sum(SIZES[one] for one in self.entries)

    @property
    def num_freeable(self) -> int:
        return self.num_free + sum(SIZES[one] for one in self.unused)

    def users(self, identifier: str) -> set[str]:
        return {request_id for request_id, _, held in self.held if held == identifier}

    def hold(self, request_id: str, index: int, identifier: str) -> None:
        self.held.add((request_id, index, identifier))
        if identifier in self.unused:
            self.unused.remove(identifier)

    def release(self, request_id: str, index: int, identifier: str) -> None:
        if (request_id, index, identifier) in self.held:
            self.held.remove((request_id, index, identifier))
            if not self.users(identifier):
                self.unused.append(identifier)

    def make_room(self, num_embeds: int) -> bool:
        if num_embeds > self.num_freeable:
            return False
        while num_embeds > self.num_free:
            oldest = self.unused.pop(0)
            self.entries.remove(oldest)
            self.freed.append(oldest)
        return True

    def state(self) -> tuple[Any, ...]:
        return sorted(self.entries), sorted(self.held), list(self.unused), list(self.freed)


def told(cache: EncoderCache, features: dict[str, Features]) -> tuple[Any, ...]:
    """All that a cache tells about itself without being changed."""
    return (
        cache.num_free,
        cache.num_freeable,
        dict(cache.entries),
        {one: set(cache.users(one)) for one in SIZES},
        {one: set(cache.held(one)) for one in features},
        cache.fingerprint(),
    )


def need(cache: EncoderCache, plain: PlainCache, request_id: str, features: Features, index: int) -> None:
    """What a scheduler does for an item: hold its entry, or make room and encode it."""
    identifier = features[index].identifier
    is_cached = cache.reference(request_id, features, index)
    assert is_cached == (identifier in plain.entries)
    if not is_cached:
        has_room = cache.make_room(SIZES[identifier])
        assert has_room == plain.make_room(SIZES[identifier])
        if not has_room:
            return
        cache.allocate(request_id, features, index, SIZES[identifier])
        plain.entries.append(identifier)
    plain.hold(request_id, index, identifier)


def give_up(cache: EncoderCache, plain: PlainCache, request_id: str, features: Features, index: int) -> None:
    """Give an item up, held or not."""
    cache.release(request_id, features, index)
    plain.release(request_id, index, features[index].identifier)


class CacheMachine(RuleBasedStateMachine):
    """Items are encoded, held, given up and forgotten; repeats within a request are frequent."""

    @initialize(
        capacity=st.integers(4, 9),
        named=st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=3, max_size=3),
    )
    def start(self, capacity: int, named: list[list[str]]) -> None:
        self.cache, self.plain = EncoderCache(capacity, IDEAL), PlainCache(capacity)
        self.features = {one: features_of(names) for one, names in zip(REQUESTS, named, strict=True)}
        self.copy = self.cache.clone()
        self.copied = told(self.copy, self.features)
        self.states: dict[object, object] = {}
        self.fingerprints: dict[object, object] = {}

    @rule(request_id=st.sampled_from(REQUESTS), data=st.data())
    def need(self, request_id: str, data: st.DataObject) -> None:
        features = self.features[request_id]
        if features:
            need(self.cache, self.plain, request_id, features, data.draw(st.integers(0, len(features) - 1)))

    @rule(request_id=st.sampled_from(REQUESTS), data=st.data())
    def release(self, request_id: str, data: st.DataObject) -> None:
        features = self.features[request_id]
        if features:
            give_up(self.cache, self.plain, request_id, features, data.draw(st.integers(0, len(features) - 1)))

    @rule(request_id=st.sampled_from(REQUESTS), num_tokens=st.integers(0, 16))
    def release_past(self, request_id: str, num_tokens: int) -> None:
        features = self.features[request_id]
        held = set(self.cache.held(request_id))
        past = self.cache.release_past(request_id, features, num_tokens)
        assert set(past) == {index for index in held if features[index].position.end <= num_tokens}
        for index in past:
            self.plain.release(request_id, index, features[index].identifier)

    @rule(request_id=st.sampled_from(REQUESTS))
    def release_all(self, request_id: str) -> None:
        features, held = self.features[request_id], list(self.cache.held(request_id))
        self.cache.release_all(request_id, features)
        for index in held:
            self.plain.release(request_id, index, features[index].identifier)

    @rule(num_embeds=st.integers(0, 9))
    def make_room(self, num_embeds: int) -> None:
        assert self.cache.make_room(num_embeds) == self.plain.make_room(num_embeds)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if self.plain.unused:
            identifier = data.draw(st.sampled_from(self.plain.unused))
            self.cache.forget(identifier)
            self.plain.unused.remove(identifier)
            self.plain.entries.remove(identifier)

    @rule()
    def take_freed(self) -> None:
        assert self.cache.take_freed() == [one for one in self.plain.freed if one not in self.plain.entries]
        self.plain.freed = []

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.plain = PlainCache(self.plain.capacity)

    @rule()
    def copy_it(self) -> None:
        self.copy, self.cache = self.cache, self.cache.clone()
        self.copied = told(self.copy, self.features)

    @invariant()
    def both_tell_the_same(self) -> None:
        plain = self.plain
        assert told(self.cache, self.features)[:-1] == (
            plain.num_free,
            plain.num_freeable,
            {one: SIZES[one] for one in plain.entries},
            {one: plain.users(one) for one in SIZES},
            {one: {index for name, index, _ in plain.held if name == one} for one in REQUESTS},
        )

    @invariant()
    def a_copy_stays_as_it_was(self) -> None:
        assert told(self.copy, self.features) == self.copied

    @invariant()
    def a_fingerprint_stands_for_one_state(self) -> None:
        fingerprint, state = self.cache.fingerprint(), self.plain.state()
        assert self.states.setdefault(fingerprint, state) == state
        assert self.fingerprints.setdefault(repr(state), fingerprint) == fingerprint


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_fingerprints_are_one_to_one_with_states() -> None:
    """All that two requests can do with an item that they share, one of them twice, and one of their own, in too little room."""
    features = {"r": features_of(["b", "a", "b"]), "s": features_of(["b", "c"])}
    states: dict[object, str] = {}
    fingerprints: dict[str, object] = {}
    open_ends = [(EncoderCache(5, IDEAL), PlainCache(5))]
    while open_ends:
        cache, plain = open_ends.pop()
        state, fingerprint = repr(plain.state()), cache.fingerprint()
        assert states.setdefault(fingerprint, state) == state
        assert fingerprints.setdefault(state, fingerprint) == fingerprint
        for request_id, items in features.items():
            for index in range(len(items)):
                for act in (need, give_up):
                    after = cache.clone(), deepcopy(plain)
                    if len(plain.freed) > 1:
                        after[0].take_freed()
                        after[1].freed = []
                    act(*after, request_id, items, index)
                    if repr(after[1].state()) not in fingerprints:
                        open_ends.append(after)
    assert len(states) == len(fingerprints) > 70
