"""Distributions of lengths, counts and sizes, as a scenario file states them and as they are drawn."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from epdsim.workload.specs import NonNegativeInt, SpecModel

Integers = NDArray[np.int64]

NAMED_SIZES: Mapping[str, tuple[int, int]] = {
    "4k": (2160, 3840),
    "1080p": (1080, 1920),
    "720p": (720, 1280),
    "360p": (360, 640),
}
"""(height, width) behind the names that benchmark tools use."""

CLIP_FRAMES_PER_S = 30.0
"""Frame rate of synthetic clips of which only the number of frames is stated (what vllm bench writes)."""


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


class MediaSize(NamedTuple):
    """Size of one picture (`num_frames` 1) or clip, or only its placeholder tokens."""

    height: int
    width: int
    num_frames: int = 1
    num_tokens: int = 0

    @property
    def modality(self) -> Literal["image", "video"]:
        """`"video"` for more than one frame."""
        return "video" if self.num_frames > 1 else "image"

    @property
    def duration_s(self) -> float:
        """Seconds of a clip at `CLIP_FRAMES_PER_S`; 0 for a picture."""
        return self.num_frames / CLIP_FRAMES_PER_S if self.num_frames > 1 else 0.0


def parse_size(given: Any) -> Any:
    """`1080p`, `640x480` (height first), `(720, 1280, 16)` or a list, as a tuple of numbers."""
    if isinstance(given, str):
        text = given.strip().lower()
        numbers = re.fullmatch(r"[(\[]?\s*(\d+)\s*[x,]\s*(\d+)\s*(?:[x,]\s*(\d+)\s*)?[)\]]?", text)
        given = NAMED_SIZES.get(text) or (
            numbers and tuple(int(number) for number in numbers.groups() if number is not None)
        )
    if not isinstance(given, (list, tuple)) or len(given) not in {2, 3} or not all(type(side) is int for side in given):
        raise ValueError(
            f"a size is HEIGHTxWIDTH, [height, width], [height, width, frames] or one of {', '.join(NAMED_SIZES)}"
        )
    if min(given) < 1:
        raise ValueError("a picture has at least 1 pixel each way, and a clip at least 1 frame")
    return tuple(given)


SizeValue = Annotated[tuple[int, ...], BeforeValidator(parse_size)]
"""A size in a scenario file, height first: two sides, and perhaps a number of frames; none of them 0."""


class FixedSize(SpecModel):
    """Every picture has the same size."""

    kind: Literal["fixed"] = "fixed"
    size: SizeValue

    def summary(self) -> str:
        """The size, height first."""
        return "x".join(map(str, self.size))

    def draw(self, _rng: np.random.Generator, count: int) -> list[MediaSize]:
        """`count` sizes."""
        return [MediaSize(*self.size)] * count


class WeightedSize(SpecModel):
    """One entry of a list of sizes."""

    size: SizeValue
    weight: NonNegativeFloat = 1.0


class WeightedSizes(SpecModel):
    """A list of sizes with weights, which need not sum to 1."""

    kind: Literal["weighted"] = "weighted"
    sizes: tuple[WeightedSize, ...]

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        WeightedTable([entry.weight for entry in self.sizes])
        return self

    @cached_property
    def _table(self) -> tuple[list[MediaSize], WeightedTable]:
        return [MediaSize(*entry.size) for entry in self.sizes], WeightedTable([entry.weight for entry in self.sizes])

    def draw(self, rng: np.random.Generator, count: int) -> list[MediaSize]:
        """`count` sizes."""
        sizes, table = self._table
        return [sizes[index] for index in table.draw(rng, count)]


Buckets = Annotated[dict[SizeValue, NonNegativeFloat], Field(min_length=1)]
"""vllm bench's form: `(height, width, frames): probability`."""


class BucketSizes(SpecModel):
    """Sizes as vllm bench states them: `"(height, width, frames)": probability`; more than one frame is a clip."""

    kind: Literal["buckets"] = "buckets"
    buckets: Buckets

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        WeightedTable(tuple(self.buckets.values()))
        return self

    @cached_property
    def _table(self) -> tuple[list[MediaSize], WeightedTable]:
        return [MediaSize(*size) for size in self.buckets], WeightedTable(tuple(self.buckets.values()))

    def draw(self, rng: np.random.Generator, count: int) -> list[MediaSize]:
        """`count` sizes."""
        sizes, table = self._table
        return [sizes[index] for index in table.draw(rng, count)]


class TokenSizes(SpecModel):
    """No pixels, only placeholder tokens per picture; at least 1 each."""

    kind: Literal["tokens"] = "tokens"
    tokens: LengthDistribution

    def draw(self, rng: np.random.Generator, count: int) -> list[MediaSize]:
        """`count` sizes, of which only `num_tokens` is known."""
        return [MediaSize(0, 0, 1, max(1, int(tokens))) for tokens in self.tokens.draw(rng, count)]


def _size_is_fixed(given: Any) -> Any:
    return {"kind": "fixed", "size": given} if isinstance(given, (str, list, tuple)) else given


SizeDistribution = Annotated[
    FixedSize | WeightedSizes | BucketSizes | TokenSizes, Field(discriminator="kind"), BeforeValidator(_size_is_fixed)
]
"""A distribution of media sizes; a bare size is a fixed one."""
