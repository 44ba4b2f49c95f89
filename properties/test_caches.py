"""Families MMC and SHM: media caches serve what was sent, both sides alike, and nothing reads what was written over."""

from __future__ import annotations

import pytest

from properties.explorations import DIRECT, MIRRORS, RINGS

pytestmark = pytest.mark.xdist_group("caches")


@pytest.mark.parametrize("name", ["MMC-MIRROR", "MMC-SERVE", "MMC-STRUCT", "MMC-RESET"])
def test_mirrored_cache(epd, name):
    epd(name, MIRRORS)


@pytest.mark.parametrize("name", ["MMC-FRESH"])
def test_payloads_on_the_wire(epd, name):
    epd(name, DIRECT)


@pytest.mark.parametrize("name", ["SHM-SAFE"])
def test_shared_memory(epd, name):
    epd(name, RINGS)
