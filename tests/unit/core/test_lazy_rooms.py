"""Rooms whose names are imported when they are asked for: all are there, and no others."""

from __future__ import annotations

from importlib import import_module

import pytest

ROOMS = ("epdsim.cost", "epdsim.fleet", "epdsim.payload", "epdsim.scenario", "epdsim.workload")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_found(room):
    found = import_module(room)
    assert all(getattr(found, name) is not None for name in found.__all__)
    assert dir(found) == sorted(found.__all__), "the reference is made of these"


@pytest.mark.parametrize("room", ROOMS)
def test_another_name_is_not(room):
    with pytest.raises(AttributeError, match=f"module '{room}' has no attribute 'no_such_name'"):
        _ = import_module(room).no_such_name
