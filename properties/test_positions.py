"""Families POS and SPLICE: a token has one position, and embeddings stand at the right tokens."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE, POSITIONS


@pytest.mark.xdist_group("positions")
@pytest.mark.parametrize("name", ["POS-EQ", "POS-SUFFIX"])
def test_positions(epd, name):
    epd(name, POSITIONS)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["SPLICE-EQ"])
def test_splicing(epd, name):
    epd(name, *ENGINE)
