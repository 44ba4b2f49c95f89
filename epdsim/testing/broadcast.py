"""Hypothesis strategies for the broadcast: messages on both sides of a chunk, up to the byte."""

from __future__ import annotations

from hypothesis import strategies as st

from epdsim.sut.broadcast_cases import BroadcastCase

_CHUNK = 4096
_sizes = st.one_of(
    st.integers(0, 64).map(lambda count: 4 * count),
    st.integers(-80, 8).map(lambda count: _CHUNK + 4 * count),
    st.sampled_from([2 * _CHUNK, 1 << 20, (1 << 20) + 4]),
)


@st.composite
def broadcast_cases(draw: st.DrawFn) -> BroadcastCase:
    """Plans with up to three tensors for one to three ranks; more of them than the ring has chunks."""
    items = draw(st.lists(st.lists(_sizes, max_size=3), min_size=1, max_size=7))
    return BroadcastCase(draw(st.integers(1, 3)), _CHUNK, items)
