"""Families ENC, EC and ISO: the encoder cache holds what is gathered, and one request's fault stays its own."""

from __future__ import annotations

import pytest

from properties.explorations import ENGINE

pytestmark = pytest.mark.xdist_group("engine")


@pytest.mark.parametrize("name", ["ENC-HIT", "ENC-MIRROR", "ENC-CONS", "ENC-KEY", "EC-SYNC", "ISO"])
def test_encoder_cache(epd, name):
    epd(name, *ENGINE)
