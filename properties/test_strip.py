"""Family STRIP: what need not be sent is not, and what is needed is there."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE, SMALL_STRIPS, STRIPS


@pytest.mark.xdist_group("strip")
@pytest.mark.parametrize("name", ["STRIP-HANDLE", "STRIP-PURE"])
def test_strip_of_items(epd, name):
    epd(name, SMALL_STRIPS, STRIPS)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-MAX", "STRIP-META"])
def test_strip_of_items_and_in_an_engine(epd, name):
    epd(name, SMALL_STRIPS, STRIPS, *ENGINE)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-AVAIL", "NO-HIT"])
def test_strip_in_an_engine(epd, name):
    epd(name, *ENGINE)
