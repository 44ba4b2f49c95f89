"""Time stands on a grid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epdsim.fleet.grid import TICKS_PER_MS, WHOLE, on_grid

LAST_MS = WHOLE / TICKS_PER_MS
near_the_last = st.floats(LAST_MS - 1, LAST_MS + 1)
halves = st.integers(0, 1 << 40).map(lambda ticks: (ticks + 0.5) / TICKS_PER_MS)


@given(st.floats(-1e12, 1e12) | st.floats(0, 100) | halves | near_the_last)
def test_a_duration_goes_to_the_nearest_tick_as_python_rounds(duration_ms) -> None:
    """What the short way rounds, which is nearly everything, and the rest: ties go to the even tick."""
    assert on_grid(duration_ms) == round(duration_ms * TICKS_PER_MS) / TICKS_PER_MS
