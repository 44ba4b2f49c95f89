"""Family ECV: the validator. All requests of up to three items are searched to the end.

Two items decide a rule that is one per item with one excuse for the whole request; a third shows that they do.
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


def shapes() -> Iterator[CheckCase]:
    """Up to three items of two modalities in four states, each with a descriptor, null or nothing in the EC parameters.

    Of three items null stands for all hashes at once, beside every choice of those that have a descriptor. Each case has variants:
    its items the other way round, its first item with a payload, its last hash with a descriptor.
    """
    for count in (1, 2, 3):
        hashes = [f"h{i}" for i in range(count)]
        for modalities in product(("image", "audio"), repeat=count):
            for states in product(STATES, repeat=count):
                for offers in (None, *_offers(hashes)):
                    items = list(zip(modalities, hashes, states, strict=True))
                    yield CheckCase(items, offers, list(range(count))[::-1], [0], hashes[-1:])


def _offers(hashes: list[str]) -> Iterator[dict[str, bool]]:
    if len(hashes) > 2:
        yield dict.fromkeys(hashes, False)
    for chosen in product((None, True) if len(hashes) > 2 else (None, True, False), repeat=len(hashes)):
        yield {one: offer for one, offer in zip(hashes, chosen, strict=True) if offer is not None}


SHAPES = listed("all requests of up to three items", shapes, level="protocol")


@pytest.mark.parametrize("name", ["ECV-SOUND", "ECV-COMPLETE", "ECV-KEYED", "ECV-MONO", "ECV-PERM", "ECV-SAYS"])
def test_validator(epd, name):
    epd(name, SHAPES, REQUESTS)
