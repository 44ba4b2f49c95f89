"""Family SES: a session is what one request with all its inputs would be."""

from __future__ import annotations

import pytest

from properties.explorations import MODES

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize("name", ["SES-EQ"])
def test_sessions(epd, name):
    epd(name, MODES)
