"""What positions are made of: the span of an item with its few numbers, and the scheme of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.records import record

if TYPE_CHECKING:
    from epdsim.core.positions.layout import LayoutBuilder
    from epdsim.core.rules import Dialect


class MissingFieldError(InputError):
    """A field that positions read is not there: whoever sent or stripped the item should have kept it (STRIP-META)."""


def missing_field(scheme: PositionScheme, feature: MediaFeature, name: str) -> MissingFieldError:
    """The error for a field that an item lacks, or that went with all its data."""
    there = "no data at all" if feature.data is None else f"only {sorted(feature.data.fields)}"
    return MissingFieldError(
        f"{feature.modality} {feature.identifier!r} at token {feature.position.offset} has {there}",
        f"positions of {scheme.name!r} read {name!r}",
        "keep it when the payload is stripped",
    )


@record
class MediaSpan:
    """Where one item stands in a prompt and the numbers that its positions are made of.

    Attributes:
        modality: `"image"`, `"video"` or `"audio"`.
        position: Its placeholder range; the mask tells media tokens from markers and timestamps inside the range.
        grid: Temporal patches, rows and columns of patches, before neighbouring patches are merged into a token.
        seconds_per_grid: Seconds between temporal patches of a clip.
        slice_sizes: Rows and columns of patches of the thumbnail and of each slice (canvas schemes only).
        audio_embed: Mask of the audio tokens in the range of a clip that carries its own sound; None for all others.
    """

    modality: str
    position: PlaceholderRange
    grid: tuple[int, int, int] = (0, 0, 0)
    seconds_per_grid: float = 1.0
    slice_sizes: tuple[tuple[int, int], ...] = ()
    audio_embed: bytes | None = None

    def embed_runs(self) -> list[tuple[int, int]]:
        """Start (in the prompt) and length of every unbroken run of media tokens."""
        offset, mask = self.position.offset, self.position.is_embed
        if mask is None:
            return [(offset, self.position.length)]
        runs: list[tuple[int, int]] = []
        start = mask.find(1)
        while start >= 0:
            end = mask.find(0, start)
            end = len(mask) if end < 0 else end
            runs.append((offset + start, end - start))
            start = mask.find(1, end)
        return runs

    def __str__(self) -> str:
        return f"{self.modality} at tokens [{self.position.offset}, {self.position.end})"


class Placement(Protocol):
    """How a scheme lays one span into a prompt whose tokens before the span are not yet all laid."""

    def __call__(
        self, builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect
    ) -> None:
        """Add the text before the span's media tokens and the tokens themselves; `ordinal` counts spans from 0."""
        ...


@record
class PositionScheme:
    """The rules by which one model numbers the tokens of a prompt; constants are changed with `dataclasses.replace`.

    Attributes:
        name: Name under which `position_scheme` finds it; begins with the kind, `"1d"`, `"mrope"` or `"xdrope"`.
        num_dims: Position ids of one token.
        place: Layout of one span; None when media count as text.
        fields: Per modality the fields that positions read, in the order of reading; a modality that is not here is refused.
        spatial_merge_size: Patches a side that become one token.
        tokens_per_second: Temporal positions of a second of video; None when temporal patches count 0, 1, 2, ...
    """

    name: str
    num_dims: int
    place: Placement | None = None
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    spatial_merge_size: int = 2
    tokens_per_second: float | None = None

    @property
    def uses_mrope(self) -> bool:
        """Whether it is one of M-RoPE: the strip then leaves position fields on covered items."""
        return self.name.startswith("mrope")

    @property
    def uses_xdrope(self) -> bool:
        """Whether it is one of XD-RoPE, which needs them too (vLLM PR 53456)."""
        return self.name.startswith("xdrope")

    def merged_grid(self, span: MediaSpan) -> tuple[int, int, int]:
        """Temporal steps, rows and columns of a span in tokens."""
        steps, rows, columns = span.grid
        return steps, rows // self.spatial_merge_size, columns // self.spatial_merge_size
