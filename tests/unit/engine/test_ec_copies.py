"""Copies of embeddings in host memory: what their owner must not do."""

from __future__ import annotations

import pytest

from epdsim.core.ec.host import HostCache


def test_copies_are_not_misused() -> None:
    copies = HostCache(4)
    copies.take("x", 2)
    with pytest.raises(AssertionError, match="already"):
        copies.take("x", 2)
    with pytest.raises(AssertionError, match="before it is complete"):
        copies.pin("x")
    copies.publish("x")
    with pytest.raises(AssertionError, match="complete already"):
        copies.publish("x")
    with pytest.raises(AssertionError, match="by eviction"):
        copies.discard("x")
    with pytest.raises(KeyError):
        copies.discard("x")
