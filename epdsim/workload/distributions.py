"""Distributions of lengths and counts, as a scenario file states them and as they are drawn."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from epdsim.workload.specs import NonNegativeInt, SpecModel

Integers = NDArray[np.int64]


class WeightedTable:
    """Indices drawn in proportion to weights.

    Args:
        weights: At least one, none negative, not all zero; they need not sum to 1.

    Raises:
        ValueError: The weights are not that.
    """

    __slots__ = ("_cumulative",)

    def __init__(self, weights: Sequence[float]) -> None:
        array = np.asarray(weights, dtype=np.float64)
        if array.size == 0 or not np.isfinite(array).all() or (array < 0).any() or array.sum() == 0:
            raise ValueError("weights must be finite, none below 0 and not all 0")
        cumulative = np.cumsum(array)
        self._cumulative = cumulative / cumulative[-1]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.intp]:
        """`count` indices."""
        return np.searchsorted(self._cumulative, rng.random(count), side="right")


class Constant(SpecModel):
    """Always the same."""

    kind: Literal["constant"] = "constant"
    value: NonNegativeInt

    @property
    def largest(self) -> int:
        """The value."""
        return self.value

    def summary(self) -> str:
        """The value."""
        return str(self.value)

    def draw(self, _rng: np.random.Generator, count: int) -> Integers:
        """`count` draws, shape `(count,)`."""
        return np.full(count, self.value, dtype=np.int64)


class Uniform(SpecModel):
    """Every integer from `low` to `high`, both included, equally often."""

    kind: Literal["uniform"] = "uniform"
    low: NonNegativeInt
    high: NonNegativeInt

    @property
    def largest(self) -> int:
        """The largest that is drawn."""
        return self.high

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """`count` draws, shape `(count,)`."""
        return rng.integers(self.low, self.high, size=count, endpoint=True)


class _Bell(SpecModel):
    mean: PositiveFloat
    stdev: NonNegativeFloat
    min: NonNegativeInt = 0
    max: NonNegativeInt | None = None

    @property
    def largest(self) -> int | None:
        """The largest that is drawn; None for no bound."""
        return self.max

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    def _clip(self, draws: NDArray[np.float64]) -> Integers:
        return np.clip(np.rint(draws), self.min, self.max if self.max is not None else 2**53).astype(np.int64)


class Normal(_Bell):
    """Normal, rounded and then clipped to `[min, max]`; `mean` and `stdev` are those before clipping."""

    kind: Literal["normal"] = "normal"

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """`count` draws, shape `(count,)`."""
        return self._clip(rng.normal(self.mean, self.stdev, count))


class LogNormal(_Bell):
    """Log-normal, rounded and then clipped; `mean` and `stdev` are those of the lengths before clipping, not of logarithms."""

    kind: Literal["lognormal"] = "lognormal"

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """`count` draws, shape `(count,)`."""
        variance = math.log1p((self.stdev / self.mean) ** 2)
        return self._clip(rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count))


class Histogram(SpecModel):
    """Values with weights, as measured somewhere; weights need not sum to 1."""

    kind: Literal["histogram"] = "histogram"
    values: dict[NonNegativeInt, NonNegativeFloat]

    @property
    def largest(self) -> int:
        """The largest that may be drawn."""
        return max(self.values)

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        WeightedTable(tuple(self.values.values()))
        return self

    def summary(self) -> str:
        """How many values, for they may be thousands."""
        return f"histogram of {len(self.values)} values"

    @cached_property
    def _table(self) -> tuple[Integers, WeightedTable]:
        return np.fromiter(self.values, dtype=np.int64), WeightedTable(tuple(self.values.values()))

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """`count` draws, shape `(count,)`."""
        values, table = self._table
        return values[table.draw(rng, count)]


def _number_is_constant(given: Any) -> Any:
    return {"kind": "constant", "value": given} if isinstance(given, int) and not isinstance(given, bool) else given


LengthDistribution = Annotated[
    Constant | Uniform | Normal | LogNormal | Histogram,
    Field(discriminator="kind"),
    BeforeValidator(_number_is_constant),
]
"""A distribution of token counts or item counts; a bare integer is a constant."""
