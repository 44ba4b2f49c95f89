"""Step times from a table of prefill and decode latencies, and a linear form fitted to one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epdsim.core.errors import InputError
from epdsim.cost.curve import Curve, lower_hull, mean_by_x, rising
from epdsim.cost.lm import LinearLm, StepLoad, chunk_pairs
from epdsim.cost.nnls import relative_nnls
from epdsim.cost.tables import ANY, LmRow, Selection, read_lm_rows


class TableLm:
    """Interpolates measured or modelled steps; reproduces its rows where they rise.

    Prefill rows are split into attention (a fitted time per pair) and the rest, a curve over new tokens, so that chunks with a past
    cost what their pairs cost. Decode rows span a grid over requests and *total* context, made to rise, and bilinear within. In a
    mixed step decode tokens share the weights that prefill reads anyway: what prefill adds to a decode step is the larger of the
    curve from zero and of its convex part from the decode tokens on.

    Args:
        rows: Two or more prefill rows, or one or more decode rows, or both.

    Raises:
        InputError: When there are fewer.
    """

    __slots__ = (
        "_base_ms",
        "_batches",
        "_contexts",
        "_grid",
        "_has_decode",
        "_has_prefill",
        "_hull",
        "_pair_ms",
        "_prefill",
    )

    def __init__(self, rows: Sequence[LmRow]) -> None:
        prefill = [row for row in rows if row.phase == "prefill"]
        decode = [row for row in rows if row.phase == "decode"]
        if not rows:
            raise InputError("step latency table", "has no rows")
        if len(prefill) == 1:
            raise InputError("step latency table", "has one prefill row", "give two or more, or decode rows only")
        self._has_prefill, self._has_decode = bool(prefill), bool(decode)
        self._pair_ms = fit_linear(prefill).pair_ms if len(prefill) > 2 else 0.0
        rest: list[tuple[float, float]] = []
        for row in prefill:
            tokens, pairs, _, _ = row_load(row)
            rest.append((tokens, max(row.step_ms - self._pair_ms * pairs, 0.0)))
        points = rising(mean_by_x(rest)) or [(0.0, 0.0)]
        self._prefill = Curve(points)
        self._batches, self._contexts, self._grid = _decode_grid(decode) if decode else ([], [], [])
        # A prefill step holds at least what the smallest decode step holds, so that a decode request never makes a step shorter.
        self._base_ms = min(points[0][1], self._grid[0][0]) if decode else points[0][1]
        self._hull = Curve(lower_hull([(0.0, self._base_ms), *(point for point in points if point[0] > 0)]))

    @classmethod
    def from_csv(cls, path: Path, which: Selection = ANY) -> TableLm:
        """Read the lines of one set-up.

        Raises:
            InputError: See `read_lm_rows`.
        """
        return cls(read_lm_rows(path, which))

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds of the step.

        Raises:
            InputError: When the table has no row of a phase that the load needs.
        """
        tokens, pairs, requests, context = load
        if not requests:
            if not tokens:
                return 0.0
            if not self._has_prefill:
                raise InputError("step latency table", "has no prefill rows")
            return self._prefill.at(tokens) + self._pair_ms * pairs
        if not self._has_decode:
            raise InputError("step latency table", "has no decode rows")
        decode_ms = self._decode_ms(requests, context)
        if not tokens:
            return decode_ms
        if not self._has_prefill:
            raise InputError("step latency table", "has no prefill rows")
        alone = self._prefill.at(tokens) - self._base_ms
        beside = self._hull.at(tokens + requests) - self._hull.at(requests)
        return decode_ms + max(alone, beside) + self._pair_ms * pairs

    def _decode_ms(self, requests: int, context: int) -> float:
        contexts, grid = self._contexts, self._grid
        j = min(max(bisect_right(contexts, context) - 1, 0), len(contexts) - 2)
        share = (context - contexts[j]) / (contexts[j + 1] - contexts[j])
        batches = self._batches
        if requests <= batches[0]:
            low = grid[0]
            return low[j] + share * (low[j + 1] - low[j])
        i = min(bisect_right(batches, requests) - 1, len(batches) - 2)
        low, high = grid[i], grid[i + 1]
        at_low = low[j] + share * (low[j + 1] - low[j])
        at_high = high[j] + share * (high[j + 1] - high[j])
        return at_low + (requests - batches[i]) / (batches[i + 1] - batches[i]) * (at_high - at_low)


_FAR = 1 << 10
"""How many times its largest row or column a grid goes on, with the fitted slope; beyond, the same slope still holds."""


def _decode_grid(rows: Sequence[LmRow]) -> tuple[list[int], list[float], list[list[float]]]:
    """Batches, total contexts, and milliseconds over both.

    Each batch's line is known over its own range of total context; outside it every line takes the slope that was fitted to all
    rows, so that no short line runs away.
    """
    fitted = fit_linear(rows)
    slope, per_request = fitted.context_token_ms, fitted.decode_request_ms
    batches = sorted({row.batch for row in rows})
    contexts = np.array(sorted({0, *(row.batch * row.context_tokens for row in rows)}), dtype=float)
    contexts = np.append(contexts, contexts[-1] * _FAR)
    lines: list[NDArray[np.float64]] = []
    for batch in batches:
        points = mean_by_x((batch * row.context_tokens, row.step_ms) for row in rows if row.batch == batch)
        xs, ys = np.array([x for x, _ in points]), np.array([y for _, y in points])
        line = np.interp(contexts, xs, ys)
        line += slope * (np.minimum(contexts - xs[0], 0) + np.maximum(contexts - xs[-1], 0))
        lines.append(np.maximum(line, 0.0))
    lines.append(lines[-1] + per_request * batches[-1] * (_FAR - 1))
    # Where the table falls, the middle of the largest value before a point and the smallest after it.
    grid = np.array(lines)
    largest = np.maximum.accumulate(np.maximum.accumulate(grid, axis=0), axis=1)
    smallest = np.minimum.accumulate(np.minimum.accumulate(grid[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    return [*batches, batches[-1] * _FAR], contexts.tolist(), ((largest + smallest) / 2).tolist()


def row_load(row: LmRow) -> StepLoad:
    """The load of the step that a row times."""
    if row.phase == "prefill":
        return StepLoad(row.batch * row.context_tokens, row.batch * chunk_pairs(0, row.context_tokens))
    return StepLoad(decode_requests=row.batch, decode_context_tokens=row.batch * row.context_tokens)


def fit_linear(rows: Path | Sequence[LmRow], which: Selection = ANY) -> LinearLm:
    """The linear form with coefficients of zero or more that is nearest to the rows in relative error.

    Args:
        rows: Rows, or a CSV as for `read_lm_rows`.
        which: Lines of the CSV that count.

    Raises:
        InputError: When there is no row, or the CSV cannot be read.
    """
    chosen = read_lm_rows(rows, which) if isinstance(rows, Path) else rows
    if not chosen:
        raise InputError("step latency table", "has no rows")
    features = np.array([(1, *row_load(row)) for row in chosen], dtype=float)
    fitted = relative_nnls(features, np.array([row.step_ms for row in chosen])).tolist()
    names = ("fixed_ms", "prefill_token_ms", "pair_ms", "decode_request_ms", "context_token_ms")
    return LinearLm(**dict(zip(names, fitted, strict=True)))
