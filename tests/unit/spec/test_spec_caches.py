"""Monitors of media caches on events made by hand, and on caches with one rule replaced: each finds what it is there for."""

from __future__ import annotations

import pytest
from verdicts import outcome

from epdsim.core.caches import mm_cache, mm_mirror, shm_cache, shm_ring
from epdsim.core.rules import IDEAL, Replacement
from epdsim.events import (
    CachedItem,
    CacheReset,
    CacheSide,
    MediaCachesSeen,
    MediaHandedOver,
    RequestFailed,
    RingEntry,
    RingItem,
    RingRead,
    RingSeen,
)
from epdsim.spec import Outcome, properties_of
from epdsim.spec.story import MOST_LINES
from epdsim.sut.caches import ReferenceCaches
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.caches import direct_cases, mirror_cases, ring_cases
from epdsim.testing.failures import told_failure
from epdsim.testing.hunt import Hunter, drawn

C = "caches"
EMPTY = CacheSide([], {}, 0, 10)


def handed(*items, result="taken", **more):
    return MediaHandedOver(0, C, "r0", items, result, **more)


def side(**held):
    return CacheSide(list(held), held, sum(held.values()), 10)


def seen(after, sender=EMPTY, receiver=EMPTY, *, is_quiet=True):
    return MediaCachesSeen(0, C, after, sender, receiver, is_quiet)


BARE = CachedItem("x", "1", 4, by_hash=True, got="1")
FULL = CachedItem("x", "1", 4, got="1")


class TestMirror:
    @pytest.mark.parametrize(
        ("events", "expected"),
        [
            ([handed(BARE)], Outcome.HOLDS),
            ([handed(FULL)], Outcome.INCONCLUSIVE),
            ([handed(CachedItem("x", "1", 4, by_hash=True))], Outcome.VIOLATED),
            ([handed(BARE, result="missed", missing=["x"]), handed(FULL, attempt=2)], Outcome.HOLDS),
            ([handed(BARE, result="missed", missing=["x"]), handed(BARE, attempt=2)], Outcome.VIOLATED),
            ([handed(BARE, result="missed", missing=["x"]), handed(FULL, BARE, attempt=2)], Outcome.HOLDS),
            ([handed(FULL, result="missed", missing=["x"])], Outcome.VIOLATED),
            ([handed(BARE, result="missed", missing=["x"], attempt=3)], Outcome.VIOLATED),
            ([handed(BARE, result="engine lost")], Outcome.VIOLATED),
        ],
    )
    def test_a_hash_alone_is_resolved_or_missed_once(self, events, expected):
        assert outcome("MMC-MIRROR", *events) is expected

    def test_a_request_with_all_its_payloads_is_served(self):
        large = CachedItem("y", "2", 11, got="2")
        assert outcome("MMC-SERVE", seen("render"), handed(FULL)) is Outcome.INCONCLUSIVE
        assert outcome("MMC-SERVE", seen("render"), handed(large)) is Outcome.HOLDS
        for result in ("refused", "lost"):
            assert outcome("MMC-SERVE", seen("render"), handed(large, result=result)) is Outcome.VIOLATED

    def test_what_comes_wins(self):
        first, held = handed(FULL, is_direct=True), seen("direct", receiver=side(x=4))
        fresh, stale = CachedItem("x", "2", 4, got="2"), CachedItem("x", "2", 4, got="1")
        assert outcome("MMC-FRESH", first, held) is Outcome.INCONCLUSIVE
        assert outcome("MMC-FRESH", first, held, handed(fresh)) is Outcome.HOLDS
        assert outcome("MMC-FRESH", first, held, handed(stale)) is Outcome.VIOLATED

    @pytest.mark.parametrize(
        ("receiver", "expected"),
        [
            (side(y=8), Outcome.HOLDS),
            (side(x=4, y=4), Outcome.INCONCLUSIVE),
            (CacheSide(["x", "y"], {"y": 8}, 8, 10), Outcome.VIOLATED),
            (CacheSide(["y"], {"y": 8}, 12, 10), Outcome.VIOLATED),
            (CacheSide(["x", "y"], {"x": 4, "y": 8}, 12, 10), Outcome.VIOLATED),
            (side(y=4, x=4), Outcome.VIOLATED),
        ],
    )
    def test_a_cache_is_sound(self, receiver, expected):
        new = handed(CachedItem("y", "2", 8, got="2"))
        before = seen("hand over", receiver=side(x=4))
        assert outcome("MMC-STRUCT", before, new, seen("hand over", receiver=receiver)) is expected

    def test_a_refusal_changes_no_cache(self):
        before = seen("hand over", side(x=4), side(x=4))
        assert outcome("MMC-STRUCT", before, seen("refuse", EMPTY, side(x=4))) is Outcome.VIOLATED

    def test_both_sides_are_alike_after_a_reset_or_a_refusal(self):
        reset, refused = CacheReset(0, C, "media"), RequestFailed(0, C, "r0", "", refused=True)
        differ = side(x=4), EMPTY
        assert outcome("MMC-RESET", seen("hand over", *differ)) is Outcome.INCONCLUSIVE
        assert outcome("MMC-RESET", reset, seen("reset", *differ, is_quiet=False)) is Outcome.INCONCLUSIVE
        for happened in (reset, refused):
            assert outcome("MMC-RESET", happened, seen("reset")) is Outcome.HOLDS
            assert outcome("MMC-RESET", happened, seen("hand over", *differ)) is Outcome.VIOLATED


class TestRing:
    @pytest.mark.parametrize(
        ("item", "result", "expected"),
        [
            (RingItem("x", "1", 0, 0, "1"), "read", Outcome.HOLDS),
            (RingItem("x", "1", None, None, "1"), "read", Outcome.INCONCLUSIVE),
            (RingItem("x", "1", 0, 0, "2"), "read", Outcome.VIOLATED),
            (RingItem("x", "1", 0, 0), "stale", Outcome.VIOLATED),
            (RingItem("x", "1", 0, 0), "damaged", Outcome.VIOLATED),
        ],
    )
    def test_what_is_read_is_what_was_written(self, item, result, expected):
        gone = RingSeen(0, C, 99, [RingEntry("y", 7, 0, 20, 0)]), RingSeen(0, C, 99, [])
        assert outcome("SHM-SAFE", *gone, RingRead(0, C, "r0", 0, [item], result)) is expected

    @pytest.mark.parametrize(
        ("entries", "is_quiet"),
        [
            ([RingEntry("x", 0, 0, 20, 0), RingEntry("y", 1, 19, 30, 0)], False),
            ([RingEntry("x", 0, 0, 100, 0)], False),
            ([RingEntry("x", 0, 0, 20, 1)], True),
            ([RingEntry("x", 0, 0, 20, -1)], True),
        ],
    )
    def test_objects_lie_apart_and_are_given_back(self, entries, is_quiet):
        assert outcome("SHM-SAFE", RingSeen(0, C, 99, entries, is_quiet)) is Outcome.VIOLATED


MIRRORS = drawn("mirrors", mirror_cases(), level="caches")
DIRECT = drawn("direct", direct_cases(), level="caches")
RINGS = drawn("rings", ring_cases(), level="caches")


def hunt(rules, name, exploration):
    dialect = IDEAL.replacing("planted", {rule: Replacement(behaviour, "planted") for rule, behaviour in rules.items()})
    system = SystemUnderTest("planted", "1", "0.32.0", caches=ReferenceCaches(dialect))
    return Hunter(system, budget=120, properties=properties_of([name])), exploration


@pytest.mark.parametrize(
    ("name", "exploration", "rules"),
    [
        (
            "MMC-MIRROR", MIRRORS,
            {"mm_cache.moves": mm_mirror.moves_at_render, "mm_cache.miss": mm_cache.miss_ends_engine},
        ),
        ("MMC-SERVE", MIRRORS, {"mm_cache.pushed_out": mm_cache.loses_pushed_out}),
        ("MMC-SERVE", MIRRORS, {"mm_cache.oversize": mm_cache.refuse_large}),
        ("MMC-FRESH", DIRECT, {"mm_cache.fresh": mm_cache.cached_wins}),
        ("MMC-RESET", MIRRORS, {"mm_cache.moves": mm_mirror.moves_at_render}),
        ("MMC-RESET", MIRRORS, {"mm_cache.reset": mm_mirror.resets_later}),
        ("SHM-SAFE", RINGS, {"shm_cache.give_back": shm_cache.keeps_reference}),
        ("SHM-SAFE", RINGS, {"shm_cache.acknowledge": shm_cache.acknowledged_on_read}),
        ("SHM-SAFE", RINGS, {"shm_cache.reset": shm_cache.reset_restarts}),
        ("SHM-SAFE", RINGS, {"shm_ring.head": shm_ring.at_gone}),
    ],
)  # fmt: skip
def test_a_planted_defect_is_caught(name, exploration, rules):
    hunter, exploration = hunt(rules, name, exploration)
    assert hunter.explored(exploration).verdicts[name].num_broken


def test_a_cache_that_forgets_what_was_used_is_caught(monkeypatch):
    monkeypatch.setattr(mm_cache.LruBytes, "touch", lambda _self, _key: None)
    hunter, exploration = hunt({}, "MMC-STRUCT", MIRRORS)
    assert hunter.explored(exploration).verdicts["MMC-STRUCT"].num_broken


def test_what_is_found_is_told_in_few_lines():
    hunter, exploration = hunt({"mm_cache.moves": mm_mirror.moves_at_render}, "MMC-RESET", MIRRORS)
    told = told_failure(hunter.smallest(exploration, "MMC-RESET"))
    lines = [line for line in told if line.lstrip()[:1].isdigit() and ". " in line[:5]]
    assert 2 <= len(lines) <= MOST_LINES
    assert lines[-1].endswith("for cached, and the engine holds []")
