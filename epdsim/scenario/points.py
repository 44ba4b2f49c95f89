"""Points of a scenario's axes, and figures by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import get_args, get_type_hints

from epdsim.core.errors import InputError
from epdsim.fleet.config import PREFILL_PAYLOADS
from epdsim.report.books import STAGES
from epdsim.report.metrics import Distribution, RunMetrics
from epdsim.scenario.schema import AxisValue

Point = Mapping[str, AxisValue]
GOODPUT = "goodput_req_s"
"""The figure that a search over runs adds."""

_HINTS = get_type_hints(RunMetrics)
_FIGURES = frozenset(_HINTS) | {name for name, one in vars(RunMetrics).items() if isinstance(one, property)}
_DISTRIBUTIONS = frozenset(name for name, hint in _HINTS.items() if Distribution in get_args(hint))
_ENTRIES: Mapping[str, Sequence[str]] = {
    "leg_bytes": ("encode", "prefill", "decode", "aggregated"),
    "prefill_bytes_by_payload": PREFILL_PAYLOADS,
    "ttft_by_stage_ms": STAGES,
    **dict.fromkeys(_DISTRIBUTIONS, tuple(one.name for one in fields(Distribution))),
}
"""What may stand behind the dot, where that is a closed list."""
_INSTANCE = re.compile(r"(engine|encode|prefill|decode)-\d+", re.ASCII)
_OPEN = frozenset({"busy_ms", "failures"})
"""Figures with an entry for whatever instance or reason there was."""


def described(point: Point) -> str:
    """A point in words; empty for the file as it stands."""
    return ", ".join(f"{axis} {value}" for axis, value in point.items())


def matches(point: Point, where: Mapping[str, Sequence[AxisValue]]) -> bool:
    """Whether a point has, on every axis named, one of the values named."""
    return all(point.get(axis) in values for axis, values in where.items())


def metric(metrics: RunMetrics, name: str) -> float:
    """A figure by its dotted name: `ttft_ms` is the mean, `ttft_ms.p99` a quantile, `leg_bytes.prefill` an entry.

    Raises:
        InputError: There is no such figure, or nothing completed of which it could be taken.
    """
    check_metric(name)
    head, _, rest = name.partition(".")
    value = getattr(metrics, head)
    if value is None and head == GOODPUT:
        rule = "none was searched for here"
        raise InputError(f"metric {name!r}", rule, "give the scenario a goodput section, and leave the rate to it")
    if value is None:
        raise InputError(f"metric {name!r}", "no request completed of which it could be taken", _why(name, metrics))
    if isinstance(value, Distribution):
        return float(asdict(value)[rest or "mean"])
    if isinstance(value, Mapping):
        return float(value.get(rest, 0) if rest else sum(value.values()))
    return float(value)


def flat_figures(metrics: RunMetrics) -> dict[str, float]:
    """Every figure of a run under its dotted name, in order of the names; those that nothing completed for are left out."""
    found: dict[str, float] = {}
    for name in sorted(_FIGURES):
        value = getattr(metrics, name)
        if isinstance(value, Distribution):
            found |= {f"{name}.{key}": float(one) for key, one in asdict(value).items()}
        elif isinstance(value, Mapping):
            found |= {f"{name}.{key}": float(value[key]) for key in value}
        elif value is not None:
            found[name] = float(value)
    return found


def check_metric(name: str) -> None:
    """Refuse a name that no run can have a figure for.

    Raises:
        InputError: With the names that there are.
    """
    head, dot, rest = name.partition(".")
    if head not in _FIGURES:
        raise InputError(f"metric {name!r}", "there is no such figure", f"there are {', '.join(sorted(_FIGURES))}")
    if dot and head == "busy_ms" and not _INSTANCE.fullmatch(rest):
        raise InputError(
            f"metric {name!r}", f"{rest!r} is no instance", "they are called engine-0, encode-0, prefill-1"
        )
    if dot and not rest:
        raise InputError(f"metric {name!r}", "nothing stands behind the dot", "name an entry, or leave the dot out")
    if dot and head not in _OPEN and rest not in _ENTRIES.get(head, ()):
        known = ", ".join(_ENTRIES.get(head, ())) or "nothing"
        raise InputError(f"metric {name!r}", f"{head} has no {rest!r}", f"it has {known}")


def unit(name: str) -> str:
    """The unit of a figure, with a space in front; empty where it is a number of things."""
    head, _, rest = name.partition(".")
    if rest == "count":
        return ""
    return next((f" {told}" for mark, told in _UNITS if mark in head), "")


_UNITS = (("per_s", "/s"), ("_ms", "ms"), ("bytes", "B"))


def more_is_better(figure: str) -> bool:
    """Whether a larger value of a figure is the better one."""
    return any(word in figure for word in ("throughput", "hit", "completed"))


def _why(name: str, metrics: RunMetrics) -> str:
    if metrics.failures:
        return next(iter(metrics.failures))
    return "requests need two output tokens for one" if name.startswith("tpot") else "warm-up requests give none"
