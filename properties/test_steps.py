"""Families TOK, KV, CHUNK and LIVE: what steps compute, on which blocks, and that everybody is served."""

from __future__ import annotations

import pytest

from properties.explorations import DOOR, DOOR_DRAFTS, ENGINE

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize("name", ["TOK-CONS", "KV-CONS", "CHUNK-WHOLE", "LIVE-PROG", "LIVE-DONE"])
def test_steps(epd, name):
    epd(name, *ENGINE)


@pytest.mark.parametrize("name", ["LIVE-ADMIT"])
def test_admission(epd, name):
    epd(name, DOOR, DOOR_DRAFTS, *ENGINE)
