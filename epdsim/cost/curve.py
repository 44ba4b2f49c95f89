"""Piecewise linear curves that never fall, for costs read from tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise


class Curve:
    """Interpolates points, holds the first value below them and continues the last slope above them.

    Args:
        points: (x, y) with distinct ascending x.
    """

    __slots__ = ("_last", "_slopes", "_xs", "_ys")

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        assert points, "a curve needs a point"
        self._xs = [float(x) for x, _ in points]
        self._ys = [float(y) for _, y in points]
        self._slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)] or [0.0]
        self._last = len(self._slopes) - 1

    def at(self, x: float) -> float:
        """The value at x."""
        xs = self._xs
        if x <= xs[0]:
            return self._ys[0]
        i = min(bisect_right(xs, x) - 1, self._last)
        return self._ys[i] + (x - xs[i]) * self._slopes[i]


def mean_by_x(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points in ascending order, those of equal x replaced by their mean."""
    groups: dict[float, list[float]] = {}
    for x, y in points:
        groups.setdefault(x, []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in sorted(groups.items())]


def rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points made to rise: each value becomes the middle of the largest up to it and the smallest from it on (ascending x)."""
    values = [y for _, y in points]
    largest = list(accumulate(values, max))
    smallest = list(accumulate(reversed(values), min))[::-1]
    return [(x, (high + low) / 2) for (x, _), high, low in zip(points, largest, smallest, strict=True)]


def lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points on the greatest convex curve that lies nowhere above the given ones (ascending x)."""
    hull: list[tuple[float, float]] = []
    for x, y in points:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x1) <= (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return hull
