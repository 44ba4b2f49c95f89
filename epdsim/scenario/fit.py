"""Choosing constants so that some published points are met.

The simulator itself is the model: each constant is moved a little, the points are run again, and a Gauss-Newton step in the
logarithms of the constants follows (they are rates and times, hence positive). Residuals are relative, so that a point of 50 ms
counts as much as one of 500.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, matches, metric
from epdsim.scenario.search_schema import FitSpec

_MOVE = 1e-3
_ROUNDS = 12
_LARGEST_STEP = 1.5

RunPoints = Callable[[Sequence[tuple[Point, Mapping[str, float]]]], list[RunMetrics]]
"""Runs points, each with some constants, at best several at a time."""
Vector = npt.NDArray[np.float64]


@record
class Fit:
    """What a fit came to.

    Attributes:
        chosen: Each constant by its name in the file.
        constants: Dotted keys of the scenario, and the values that follow.
        metric: The figure that was fitted.
        points: The points that were used; all others are predictions.
        rms_percent: Root mean square of the relative deviations that are left.
    """

    chosen: Mapping[str, float]
    constants: Mapping[str, float]
    metric: str
    points: tuple[Point, ...]
    rms_percent: float


def fit_constants(scenario: Scenario, run: RunPoints) -> Fit:
    """Fit the constants that a scenario names; that enough points are published was checked when it was loaded."""
    wanted = scenario.spec.fit
    assert wanted is not None, "the caller has seen a fit section"
    used = [one for one in scenario.spec.published if one.metric == wanted.metric and matches(one.at, wanted.where)]
    names, targets = list(wanted.parameters), np.array([one.value for one in used])

    def residuals(*tried: Vector) -> list[Vector]:
        settings = [_settings(wanted, np.exp(logs).tolist()) for logs in tried]
        done = run([(one.at, constants) for constants in settings for one in used])
        simulated = np.array([metric(metrics, wanted.metric) for metrics in done]).reshape(len(tried), len(used))
        return list(simulated / targets - 1.0)

    logs = np.log(np.array([parameter.start for parameter in wanted.parameters.values()]))
    (best,) = residuals(logs)
    for _ in range(_ROUNDS):
        moved = residuals(*(logs + _MOVE * unit for unit in np.eye(len(names))))
        jacobian = np.column_stack([(one - best) / _MOVE for one in moved])
        _need_effect(scenario, names, jacobian)
        step = np.clip(np.linalg.lstsq(jacobian, -best, rcond=None)[0], -_LARGEST_STEP, _LARGEST_STEP).astype(
            np.float64
        )
        logs, best, improved = _line_search(residuals, logs, best, step)
        if not improved:
            break
    values = np.exp(logs).tolist()
    chosen = dict(zip(names, values, strict=True))
    rms_percent = 100.0 * float(np.sqrt(np.mean(best**2)))
    return Fit(chosen, _settings(wanted, values), wanted.metric, tuple(one.at for one in used), rms_percent)


def _need_effect(scenario: Scenario, names: Sequence[str], jacobian: Vector) -> None:
    for name, effects in zip(names, jacobian.T, strict=True):
        if not effects.any():
            place = scenario.file.place(("fit", "parameters", name))
            rule = "moving this constant changes none of the figures to fit"
            raise InputError(place, rule, "leave it out, or start it where it has an effect")


def _settings(wanted: FitSpec, values: Sequence[float]) -> dict[str, float]:
    """What the constants' values put into the scenario."""
    return {
        key: value * factor
        for parameter, value in zip(wanted.parameters.values(), values, strict=True)
        for key, factor in parameter.sets.items()
    }


def _line_search(
    residuals: Callable[..., list[Vector]], logs: Vector, best: Vector, step: Vector
) -> tuple[Vector, Vector, bool]:
    for scale in (1.0, 0.5, 0.25, 0.1):
        (tried,) = residuals(logs + scale * step)
        if float(tried @ tried) < float(best @ best) * (1.0 - 1e-9):
            return logs + scale * step, tried, True
    return logs, best, False
