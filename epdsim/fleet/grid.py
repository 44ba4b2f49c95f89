"""The grid on which time stands.

It is of 2^-20 milliseconds (about a nanosecond), so that sums of durations are exact and many steps taken at once end at the same
instant as one by one (property FWD-EQ).
"""

from __future__ import annotations

from math import ceil
from typing import Final

TICKS_PER_MS: Final = 1048576.0
WHOLE: Final = 4503599627370496.0
"""2^52: a number of ticks from 0 to there has no room for a fraction once this is added, and is rounded as `round` does it."""


def on_grid(duration_ms: float) -> float:
    """The nearest duration on the grid of time."""
    ticks = duration_ms * TICKS_PER_MS
    if 0.0 <= ticks < WHOLE:
        return (ticks + WHOLE - WHOLE) / TICKS_PER_MS
    return round(ticks) / TICKS_PER_MS


def up_to_grid(time_ms: float) -> float:
    """The first moment on the grid that is not before a time."""
    return ceil(time_ms * TICKS_PER_MS) / TICKS_PER_MS
