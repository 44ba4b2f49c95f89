"""Families KEY and RECOMP: KV content is what its reader takes it for."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize("name", ["KEY-INJ", "RECOMP-EQ"])
def test_kv_content(epd, name):
    epd(name, *ENGINE)
