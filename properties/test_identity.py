"""Families HASH and KEY-PARITY: what has one name is one thing, and everybody gives it the same name."""

from __future__ import annotations

import pytest

from properties.explorations import HASHES, KEYS

pytestmark = pytest.mark.xdist_group("identity")


@pytest.mark.parametrize("name", ["HASH-INJ"])
def test_media_hashes(epd, name):
    epd(name, HASHES)


@pytest.mark.parametrize("name", ["KEY-PARITY"])
def test_block_keys(epd, name):
    epd(name, KEYS)
