"""Least squares with coefficients that are not below zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def relative_nnls(features: _Floats, targets: _Floats) -> _Floats:
    """Coefficients of zero or more with the least sum of squared *relative* errors, by the active-set method of Lawson and Hanson.

    Args:
        features: One row per sample, one column per coefficient.
        targets: One positive value per sample.
    """
    rows = features / targets[:, None]
    scale = np.linalg.norm(rows, axis=0)
    used = np.where(scale > 0, scale, 1.0)
    return _nnls(rows / used, np.ones(len(rows))) / used


def _nnls(matrix: _Floats, target: _Floats) -> _Floats:
    count = matrix.shape[1]
    x = np.zeros(count)
    free = np.zeros(count, dtype=bool)
    for _ in range(10 * count):
        gradient = matrix.T @ (target - matrix @ x)
        if free.all() or gradient[~free].max() <= 1e-10:
            break
        free[np.argmax(np.where(free, -np.inf, gradient))] = True
        while free.any():
            best = np.zeros(count)
            best[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if best[free].min() > 0:
                x = best
                break
            # Walk towards the unconstrained optimum until the first coefficient reaches zero, and fix that one there.
            falling = free & (best <= 0)
            step = np.min(x[falling] / (x[falling] - best[falling] + 1e-300))
            x = x + step * (best - x)
            free &= x > 1e-12
            x[~free] = 0.0
    return x
