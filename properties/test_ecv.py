"""Family ECV: the validator. All requests of up to two items are enumerated, which decides it.

The rule is one per item with one excuse for the whole request, so that no larger request can break it when none of two items does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from epdsim.sut.cases import CheckCase
from epdsim.testing.hunt import listed
from epdsim.testing.strategies import STATES
from properties.explorations import REQUESTS

pytestmark = pytest.mark.xdist_group("ecv")


def _shapes() -> Iterator[CheckCase]:
    """Up to two items, two modalities, four states, and for each hash a descriptor, null or nothing."""
    for count in (1, 2):
        hashes = [f"h{i}" for i in range(count)]
        for modalities in product(("image", "audio"), repeat=count):
            for states in product(STATES, repeat=count):
                for offers in (None, *_offers(hashes)):
                    items = list(zip(modalities, hashes, states, strict=True))
                    yield CheckCase(items, offers, list(range(count))[::-1], [0], hashes[-1:])


def _offers(hashes: list[str]) -> Iterator[dict[str, bool]]:
    for chosen in product((None, True, False), repeat=len(hashes)):
        yield {one: offer for one, offer in zip(hashes, chosen, strict=True) if offer is not None}


SHAPES = listed("all requests of up to two items", _shapes, level="protocol")


@pytest.mark.parametrize("name", ["ECV-SOUND", "ECV-COMPLETE", "ECV-KEYED", "ECV-MONO", "ECV-PERM", "ECV-SAYS"])
def test_validator(epd, name):
    epd(name, SHAPES, REQUESTS)
