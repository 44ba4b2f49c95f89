"""The encoder cache: capacity in embeddings, references by request and occurrence, order of eviction."""

import pytest

from epdsim.core.caches.encoder_cache import ITEM_SLOTS, LAST_OCCURRENCE, EncoderCache
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.rules import IDEAL, Replacement


def items(*identifiers: str, length: int = 4) -> list[MediaFeature]:
    spans = enumerate(identifiers)
    return [MediaFeature("image", name, PlaceholderRange(place * length, length)) for place, name in spans]


def put(cache: EncoderCache, request_id: str, features: list[MediaFeature], index: int = 0) -> None:
    size = features[index].position.num_embeds
    assert cache.make_room(size)
    cache.allocate(request_id, features, index, size)


@pytest.fixture
def cache() -> EncoderCache:
    return EncoderCache(8, IDEAL)


def test_an_entry_outlives_its_users_until_the_room_is_needed(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    cache.release_all("r", items("a"))
    assert (cache.num_free, cache.num_freeable) == (4, 8)
    assert cache.reference("s", items("a"), 0)
    assert cache.num_freeable == 4
    assert cache.take_freed() == []


def test_the_entry_longest_without_users_goes_first(cache: EncoderCache) -> None:
    for name in "ab":
        put(cache, "r", items(name))
        cache.release_all("r", items(name))
    assert cache.reference("s", items("a"), 0)
    cache.release_all("s", items("a"))
    put(cache, "t", items("c"))
    assert cache.take_freed() == ["b"]
    assert cache.take_freed() == []


def test_entries_in_use_are_not_evicted_and_failure_changes_nothing(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    put(cache, "r", items("b", "c"), 0)
    before = cache.fingerprint()
    assert not cache.make_room(1)
    assert cache.fingerprint() == before


def test_an_entry_evicted_and_encoded_again_in_one_step_is_not_reported(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    cache.release_all("r", items("a"))
    put(cache, "s", items("b"))
    assert cache.make_room(4)
    put(cache, "t", items("a"))
    assert cache.take_freed() == []


def test_a_repeated_item_is_held_until_its_last_occurrence(cache: EncoderCache) -> None:
    """Twice the same image in one request, and another request that needs the room (vLLM PR 54284)."""
    features = items("a", "a")
    put(cache, "r", features, 0)
    assert cache.reference("r", features, 1)
    cache.release_past("r", features, 4)
    assert cache.users("a") == {"r"}
    assert not cache.make_room(8)
    cache.release_past("r", features, 8)
    assert not cache.users("a")
    assert cache.make_room(8)


def test_the_defect_gives_it_up_at_the_first_occurrence() -> None:
    dialect = IDEAL.replacing("eager", {LAST_OCCURRENCE.name: Replacement(lambda *_: True, "before PR 54284")})
    cache, features = EncoderCache(8, dialect), items("a", "a")
    put(cache, "r", features, 0)
    assert cache.reference("r", features, 1)
    cache.release_past("r", features, 4)
    assert not cache.users("a")


def test_releasing_twice_is_harmless(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    cache.release("r", items("a"), 0)
    before = cache.fingerprint()
    cache.release("r", items("a"), 0)
    assert cache.fingerprint() == before


def test_an_item_takes_its_embeddings_not_its_length() -> None:
    """A span of 12 with 3 embeddings fits in 4 (vLLM PR 30475)."""
    position = PlaceholderRange(0, 12, bytes([1, 0, 0, 0] * 3))
    assert IDEAL[ITEM_SLOTS](position) == 3


def test_reset_forgets_everything(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    cache.reset()
    assert (cache.num_free, cache.num_freeable, dict(cache.entries)) == (8, 8, {})
    cache.release_all("r", items("a"))
    assert (cache.num_free, cache.num_freeable) == (8, 8)


def test_a_clone_is_independent(cache: EncoderCache) -> None:
    put(cache, "r", items("a"))
    other = cache.clone()
    other.release_all("r", items("a"))
    assert cache.users("a") == {"r"}
    assert cache.num_freeable == 4
