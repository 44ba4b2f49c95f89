"""Family STRIP: what need not be sent is not, and what is needed is there."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE, LATE, MODES, SMALL_STRIPS, STRIPS


@pytest.mark.xdist_group("strip")
@pytest.mark.parametrize("name", ["STRIP-HANDLE", "STRIP-PURE"])
def test_strip_of_items(epd, name):
    epd(name, SMALL_STRIPS, STRIPS)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-MAX", "STRIP-META"])
def test_strip_of_items_and_in_an_engine(epd, name):
    epd(name, SMALL_STRIPS, STRIPS, *ENGINE)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-AVAIL"])
def test_payloads_are_there(epd, name):
    epd(name, *ENGINE, LATE)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["NO-HIT"])
def test_strip_in_an_engine(epd, name):
    epd(name, *ENGINE)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-COST"])
def test_strip_in_sessions(epd, name):
    epd(name, MODES)


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ["STRIP-LATE"])
def test_payloads_that_are_sent_late(epd, name):
    epd(name, LATE)
