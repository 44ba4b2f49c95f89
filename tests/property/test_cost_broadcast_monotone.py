"""SIM-MONO for the broadcast: more bytes, tensors, items or ranks never cost less, wherever the chunk limit is."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epdsim.cost import BroadcastLoad, BroadcastProfile, broadcast_ms

SLACK = 1 - 1e-9  # rounding of sums of floats

costs_ms = st.floats(0, 10)
rates = st.floats(1e-2, 1e12)
profiles = st.builds(
    BroadcastProfile,
    *[costs_ms] * 4,
    *[rates] * 4,
    reader_contention=st.floats(0, 3),
    chunk_bytes=st.integers(1, 5000),
    in_band=st.booleans(),
)
near_the_limit = st.integers(0, 6000)
loads = st.builds(
    BroadcastLoad, near_the_limit, near_the_limit, st.integers(0, 60), st.integers(0, 60), st.integers(0, 9)
)
QUICK_SOCKET = BroadcastProfile(socket_bytes_per_ms=1e12, chunk_bytes=1000, in_band=False)


@pytest.mark.parametrize("name", [one.name for one in fields(BroadcastLoad)])
@given(profile=profiles, load=loads, step=st.integers(1, 6000))
@example(profile=QUICK_SOCKET, load=BroadcastLoad(0, 999, 1, 1, 1), step=1)
def test_more_never_costs_less(name, profile, load, step):
    more = replace(load, **{name: getattr(load, name) + step})
    assert broadcast_ms(more, profile).total_ms >= broadcast_ms(load, profile).total_ms * SLACK


@given(profile=profiles, load=loads)
def test_no_part_is_below_zero_and_a_slower_host_is_never_faster(profile, load):
    time = broadcast_ms(load, profile)
    assert min(time.serialise_ms, time.copy_ms, time.deliver_ms) >= 0
    for one in fields(profile):
        if one.name.endswith("_bytes_per_ms"):
            slower = replace(profile, **{one.name: getattr(profile, one.name) / 2})
        elif one.name.endswith("_ms") or one.name == "reader_contention":
            slower = replace(profile, **{one.name: getattr(profile, one.name) * 2 + 0.1})
        else:
            continue
        assert broadcast_ms(load, slower).total_ms >= time.total_ms * SLACK, one.name
