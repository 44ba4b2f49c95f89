"""LLaVA-1.5 and Pixtral: one picture, one encoder run, no tiles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem
from epdsim.media.base import BaseFamily, RenderedMedia, picture_size, sized


@dataclass(frozen=True, kw_only=True)
class Llava(BaseFamily):
    """LLaVA-1.5: every picture is brought to one square, every patch is a token.

    Attributes:
        image_side: Side of the square in pixels.
        patch: Side of a patch in pixels.
    """

    image_side: int = 336
    patch: int = 14

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("patch", "image_side")

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture; its size does not matter."""
        picture_size(height, width)
        tokens = (self.image_side // self.patch) ** 2
        return RenderedMedia(
            modality="image",
            num_tokens=tokens,
            is_embed=None,
            item=MediaItem({"pixel_values": sized(self.wire_dtype, 3, self.image_side, self.image_side)}),
            num_embeds=tokens,
            embedding_bytes=self._embedding_bytes(tokens),
            encoder_patches=tokens,
        )

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        """The one square."""
        yield self.image_side, self.image_side


@dataclass(frozen=True, kw_only=True)
class Pixtral(BaseFamily):
    """Pixtral: pictures keep their size up to a longest side; a break token ends each row, an end token the last.

    The two formats in which the checkpoint is served differ: Mistral's own names the field `images` and rounds a shrunken side,
    the one of transformers names it `pixel_values` and cuts it.

    Attributes:
        longest_side: Pixels; larger pictures are shrunk to it.
        patch: Side of a patch in pixels.
        merge: Patches a side that become one token (1 in Pixtral, 2 in its successors).
        mistral_format: Whether the checkpoint is served in Mistral's own format.
    """

    longest_side: int = 1024
    patch: int = 16
    merge: int = 1
    mistral_format: bool = True

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture; InputError when its shorter side vanishes in shrinking."""
        rows, columns = self._rows_and_columns(*picture_size(height, width))
        cell = self.patch * self.merge
        mask = (b"\1" * columns + b"\0") * rows
        field = "images" if self.mistral_format else "pixel_values"
        tokens = rows * columns
        return RenderedMedia(
            modality="image",
            num_tokens=len(mask),
            is_embed=mask,
            item=MediaItem({field: sized(self.wire_dtype, 3, rows * cell, columns * cell)}),
            num_embeds=tokens,
            embedding_bytes=self._embedding_bytes(tokens),
            encoder_patches=tokens * self.merge**2,
        )

    def _rows_and_columns(self, height: int, width: int) -> tuple[int, int]:
        shrink = max(height / self.longest_side, width / self.longest_side, 1.0)
        if shrink > 1 and self.mistral_format:
            height, width = max(round(height / shrink), 1), max(round(width / shrink), 1)
        elif shrink > 1:
            high, wide = math.floor(height / shrink), math.floor(width / shrink)
            if min(high, wide) == 0:
                raise InputError(f"picture of {height} x {width} pixels", "its shorter side vanishes when it is shrunk")
            height, width = high, wide
        cell = self.patch * self.merge
        return -(-height // cell), -(-width // cell)

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:
        """Near-square grids; a row of `c` columns takes `c` + 1 tokens."""
        cell, most = self.patch * self.merge, self.longest_side // (self.patch * self.merge)
        for rows in range(1, most + 1):
            for columns in (num_tokens // rows - 1, num_tokens // rows):
                yield rows * cell, min(max(columns, 1), most) * cell
