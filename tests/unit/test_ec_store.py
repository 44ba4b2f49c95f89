"""The EC store's books: readiness before announcement, leases, eviction in order."""

import pytest

from epdsim.core.ec.store import EcStore


def test_an_entry_is_announced_only_once_complete() -> None:
    store = EcStore()
    store.reserve("a", 10)
    assert store.is_reserved("a")
    assert not store.is_ready("a")
    assert store.publish("a") == []
    assert store.is_ready("a")
    assert not store.is_reserved("a")


def test_least_recently_used_goes_first_and_the_newest_never() -> None:
    store = EcStore(capacity_bytes=20)
    for name in ("a", "b"):
        store.reserve(name, 10)
        store.publish(name)
    store.touch("a")
    store.reserve("c", 10)
    assert store.publish("c") == ["b"]
    assert store.used_bytes == 20
    store.reserve("big", 100)
    assert store.publish("big") == ["a", "c"]
    assert store.is_ready("big")


def test_a_lease_keeps_an_entry() -> None:
    store = EcStore(capacity_bytes=10)
    store.reserve("a", 10)
    store.publish("a")
    store.pin("a")
    store.reserve("b", 10)
    assert store.publish("b") == []
    with pytest.raises(AssertionError, match="lease"):
        store.evict("a")
    store.unpin("a")
    store.reserve("c", 10)
    assert store.publish("c") == ["a", "b"]


def test_misuse_is_caught_at_the_first_wrong_call() -> None:
    store = EcStore()
    store.reserve("a", 1)
    with pytest.raises(AssertionError, match="already"):
        store.reserve("a", 1)
    with pytest.raises(AssertionError, match="before it is complete"):
        store.touch("a")
    with pytest.raises(AssertionError, match="more often"):
        store.unpin("a")
