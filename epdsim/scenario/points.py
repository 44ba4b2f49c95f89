"""Points of a scenario's axes, and figures by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from epdsim.core.errors import InputError
from epdsim.report.metrics import Distribution, RunMetrics
from epdsim.scenario.schema import AxisValue

Point = Mapping[str, AxisValue]


def matches(point: Point, where: Mapping[str, Sequence[AxisValue]]) -> bool:
    """Whether a point has, on every axis named, one of the values named."""
    return all(point.get(axis) in values for axis, values in where.items())


def metric(metrics: RunMetrics, name: str) -> float:
    """A figure by its dotted name: `ttft_ms` is the mean, `ttft_ms.p99` a quantile, `leg_bytes.prefill` an entry.

    Raises:
        InputError: There is no such figure, or nothing completed of which it could be taken.
    """
    head, _, rest = name.partition(".")
    if not hasattr(metrics, head):
        raise InputError(f"metric {name!r}", "there is no such figure", f"there are {sorted(_names(metrics))}")
    value = getattr(metrics, head)
    if value is None:
        raise InputError(f"metric {name!r}", "no request completed of which it could be taken", _why(metrics))
    if isinstance(value, Distribution):
        return float(asdict(value)[rest or "mean"])
    if isinstance(value, Mapping):
        return float(value.get(rest, 0) if rest else sum(value.values()))
    return float(value)


def _names(metrics: RunMetrics) -> list[str]:
    return [name for name in dir(metrics) if not name.startswith("_") and not callable(getattr(metrics, name))]


def _why(metrics: RunMetrics) -> str:
    return next(iter(metrics.failures), "see the books: injected, completed, failed, refused")
