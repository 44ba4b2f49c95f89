"""Families POS and SPLICE: tokens turn by the right angle, and embeddings stand at the right tokens."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["SPLICE-EQ"])
def test_splicing(epd, name):
    epd(name, *ENGINE)
