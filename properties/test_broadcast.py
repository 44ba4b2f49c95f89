"""Family TP: all ranks receive what was sent."""

from __future__ import annotations

import pytest

from properties.explorations import BROADCASTS

pytestmark = pytest.mark.xdist_group("broadcast")


@pytest.mark.parametrize("name", ["TP-SAME"])
def test_ranks(epd, name):
    epd(name, BROADCASTS)
