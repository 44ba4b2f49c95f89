"""The mirrored processor cache: one rule at a time, and the public defects as replaced rules."""

from __future__ import annotations

import pytest

from epdsim.core.caches.mm_cache import (
    EngineLostError,
    ItemLostError,
    LruBytes,
    MediaCacheMissError,
    ReceiverCache,
    SenderCache,
)
from epdsim.core.caches.mm_mirror import MirroredCaches
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL, Replacement

RELEASE = named("vllm-0.32")


def item(content: str, size: int = 1) -> MediaItem:
    return MediaItem({"pixel_values": Field(TensorHandle("uint8", (size,), digest=content), BatchedKind())})


def features(*items: object) -> list[MediaFeature]:
    """Items by key, `(key, size)`, `(key, size, content)` or `(key, size, content, modality)`, one after another."""
    made = []
    for place, one in enumerate(items):
        key, size, content, modality = (
            (*one, *(None,) * (4 - len(one))) if isinstance(one, tuple) else (one, 1, None, None)
        )
        span = PlaceholderRange(10 * place, 4)
        made.append(MediaFeature(modality or "image", key, span, item(content or key, size or 1)))
    return made


def contents(taken: list[MediaFeature]) -> list[str | None]:
    return [None if one.data is None else one.data.fields["pixel_values"].data.digest for one in taken]


def through(caches: MirroredCaches, *items: object, name: str = "r") -> list[str | None]:
    """Render and hand over; the contents at the engine, or the missing keys with a mark."""
    caches.render(name, features(*items))
    result = caches.hand_over(name)
    return [f"missing {key}" for key in result.missing] or contents(list(result.features))


class TestLru:
    def test_the_oldest_go_until_a_new_one_fits_and_use_makes_young(self):
        lru: LruBytes[str] = LruBytes(5)
        for key, size in [("a", 2), ("b", 1), ("c", 2)]:
            assert lru.put(key, key.upper(), size)
        assert lru.get("a") == "A"
        assert lru.put("d", "D", 2)
        assert (lru.keys, lru.used_bytes) == (["a", "d"], 4)
        lru.touch("a")
        lru.touch("nobody")
        assert lru.get("nobody") is None
        assert lru.keys == ["d", "a"]

    def test_what_is_larger_than_all_of_it_is_not_taken_and_pushes_nothing_out(self):
        lru: LruBytes[str] = LruBytes(5)
        lru.put("a", "A", 5)
        assert not lru.put("b", "B", 6)
        assert lru.keys == ["a"]
        lru.drop("a")
        lru.drop("a")
        assert lru.used_bytes == 0


class TestSides:
    def test_what_the_engine_should_hold_goes_by_hash_only(self):
        sender, receiver = SenderCache(3), ReceiverCache(3)
        for one, sent in [(["a", "b"], ["a", "b"]), (["b", "c", "a"], [None, "c", None]), (["c"], [None])]:
            on_wire = sender.take(features(*one))
            assert contents(on_wire) == sent
            assert contents(receiver.take(on_wire)) == one
            assert sender.cache.keys == receiver.cache.keys
        assert sender.hits == 3

    def test_an_item_that_comes_twice_in_a_request_is_sent_once(self):
        sender, receiver = SenderCache(3), ReceiverCache(3)
        on_wire = sender.take(features("a", "a"))
        assert contents(on_wire) == ["a", None]
        assert contents(receiver.take(on_wire)) == ["a", "a"]

    def test_a_hash_without_data_must_be_there_and_leaves_no_trace_when_it_is_not(self):
        sender = SenderCache(3)
        sender.take(features("a", "b"))
        bare = [MediaFeature("image", "x", PlaceholderRange(0, 4))]
        with pytest.raises(InputError, match="comes without data"):
            sender.take([*features("a"), *bare])
        assert sender.cache.keys == ["a", "b"]
        (sent,) = sender.take([MediaFeature("image", "a", PlaceholderRange(0, 4))])
        assert sent.data is None

    def test_a_miss_names_everything_that_is_missing_and_holds_what_came(self):
        receiver = ReceiverCache(5)
        bare = [MediaFeature("image", key, PlaceholderRange(0, 4)) for key in "xy"]
        with pytest.raises(MediaCacheMissError) as miss:
            receiver.take([bare[0], *features("a"), bare[1]])
        assert miss.value.keys == ("x", "y")
        assert receiver.cache.keys == ["a"]
        with pytest.raises(EngineLostError, match="x"):
            ReceiverCache(5, named("vllm-0.27")).take(bare)

    def test_an_item_larger_than_the_cache_is_served_by_both_and_held_by_none(self):
        sender, receiver = SenderCache(3), ReceiverCache(3)
        for _ in range(2):
            on_wire = sender.take(features("a", ("big", 4)))
            assert contents(receiver.take(on_wire)) == ["a", "big"]
            assert on_wire[1].data is not None
        assert sender.cache.keys == receiver.cache.keys == ["a"]
        with pytest.raises(InputError, match="4 bytes"):
            SenderCache(3, named("vllm-0.28")).take(features(("big", 4)))

    def test_a_fresh_payload_wins_over_what_is_held(self):
        """Defect D6: same key, another item, after the front end has lost the first."""
        for release, got in [("ideal", "new"), ("vllm-0.32", "new"), ("vllm-0.30", "old")]:
            receiver = ReceiverCache(9, named(release))
            receiver.take(features(("u", 4, "old")))
            assert contents(receiver.take(features(("u", 6, "new")))) == [got]
            assert receiver.cache.used_bytes == (6 if got == "new" else 4)

    def test_a_replacement_that_does_not_fit_leaves_no_stale_item(self):
        receiver = ReceiverCache(5)
        receiver.take(features(("u", 4, "old")))
        receiver.take(features(("u", 6, "new")))
        assert receiver.cache.keys == []

    def test_an_item_that_its_own_request_pushes_out_still_serves_it(self):
        caches = MirroredCaches(3)
        through(caches, "a", "b")
        assert through(caches, ("big", 3), "a") == ["big", "a"]
        assert caches.are_equal
        sender = SenderCache(3, RELEASE)
        sender.take(features("a", "b"))
        with pytest.raises(ItemLostError, match="'a'"):
            sender.take(features(("big", 3), "a"))

    def test_the_hash_is_the_key_whatever_adapter_prefixes_the_identifier(self):
        """Defect B15."""
        with_adapters = [
            MediaFeature("image", f"{adapter}:x", PlaceholderRange(0, 4), item("x"), mm_hash="x") for adapter in "ab"
        ]
        defect = IDEAL.replacing("b15", {"mm_cache.key": Replacement(lambda one: one.identifier, "vLLM PR 31927")})
        for dialect, keys in [(IDEAL, ["x"]), (defect, ["a:x", "b:x"])]:
            sender = SenderCache(3, dialect)
            for one in with_adapters:
                sender.take([one])
            assert sender.cache.keys == keys


class TestMirror:
    def test_requests_that_change_places_make_a_release_miss_and_not_the_ideal(self):
        """Defect D1: {a, b} and {c, d} are rendered in one order and taken in by the other; then {a}."""
        for dialect, last in [(IDEAL, ["a"]), (RELEASE, ["c"])]:
            caches = MirroredCaches(3, dialect)
            caches.render("one", features("a", "b"))
            caches.render("two", features("c", "d"))
            caches.hand_over("two")
            caches.hand_over("one")
            assert caches.are_equal == (dialect is IDEAL)
            key = last[0]
            caches.render("three", features(key))
            result = caches.hand_over("three")
            assert list(result.missing) == ([] if dialect is IDEAL else [key])
            if result.missing:
                assert through(caches, key) == [key], "one retry brings it"

    def test_before_it_was_typed_the_same_miss_ended_the_engine(self):
        caches = MirroredCaches(3, named("vllm-0.27"))
        for name, keys in [("one", "ab"), ("two", "cd")]:
            caches.render(name, features(*keys))
        caches.hand_over("two")
        caches.hand_over("one")
        caches.render("three", features("c"))
        with pytest.raises(EngineLostError):
            caches.hand_over("three")

    def test_a_refused_request_leaves_a_release_ahead(self):
        """Defect D3."""
        for dialect, got in [(IDEAL, "by payload"), (RELEASE, "missing")]:
            caches = MirroredCaches(3, dialect)
            caches.render("too long", features("x"))
            caches.reject("too long")
            caches.render("next", features("x"))
            result = caches.hand_over("next")
            assert ("missing" if result.missing else "by payload") == got

    def test_items_of_several_modalities_are_taken_in_one_order(self):
        mixed = [("i", 1, "i", "image"), ("v", 1, "v", "video"), ("j", 1, "j", "image")]
        for dialect, equal in [(IDEAL, True), (RELEASE, False)]:
            caches = MirroredCaches(3, dialect)
            through(caches, *mixed)
            assert caches.are_equal == equal
            assert caches.receiver.cache.keys == ["i", "v", "j"]
            assert caches.sender.cache.keys == (["i", "v", "j"] if equal else ["i", "j", "v"])

    def test_a_reset_keeps_both_sides_in_step(self):
        caches = MirroredCaches(3)
        through(caches, "a")
        caches.reset()
        assert caches.are_equal
        assert caches.receiver.cache.keys == []
        assert through(caches, "a") == ["a"]

    def test_a_reset_that_the_engine_comes_to_late_makes_a_release_miss(self):
        caches = MirroredCaches(3, RELEASE)
        through(caches, "a")
        caches.reset()
        assert through(caches, "a") == ["a"]
        caches.finish_reset()
        assert through(caches, "a") == ["missing a"]
        assert through(caches, "a") == ["a"]

    def test_bytes_between_the_processes_are_those_of_payloads(self):
        caches = MirroredCaches(9)
        for expected in (5, 0):
            caches.render("r", features(("a", 2), ("b", 3)))
            assert caches.hand_over("r").sent_bytes == expected
