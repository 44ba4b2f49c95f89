"""Sizes of pictures and clips, and how they are distributed."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, model_validator

from epdsim.workload.distributions import LengthDistribution, WeightedTable
from epdsim.workload.specs import SpecModel

NAMED_SIZES: Mapping[str, tuple[int, int]] = {
    "4k": (2160, 3840),
    "1080p": (1080, 1920),
    "720p": (720, 1280),
    "360p": (360, 640),
}
"""(height, width) behind the names that benchmark tools use."""

CLIP_FRAMES_PER_S = 30.0
"""Frame rate of synthetic clips of which only the number of frames is stated (what vllm bench writes)."""


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
