"""The canvas of MiniCPM-V 4.7: a thumbnail stretched over the slices that were cut from the picture.

All media tokens of a picture share one temporal id. Slices lie row by row as they were cut; the thumbnail's tokens spread over the
same plane. Markers stand at the plane's corners. Source: vLLM 0.32, model MiniCPM-V 4.7, mode "canvas".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from epdsim.core.errors import InputError
from epdsim.core.positions.layout import LayoutBuilder
from epdsim.core.positions.records import MediaSpan, PositionScheme
from epdsim.core.rules import Dialect


class _Tile(NamedTuple):
    """The thumbnail or a slice: its tokens in the span, its size in tokens, and where its corner stands on the canvas."""

    start: int
    length: int
    rows: int
    columns: int
    top: int = 0
    left: int = 0


def place_canvas(
    builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect
) -> None:
    """Lay a picture of one thumbnail and any number of slices.

    The canvas begins with the marker before the thumbnail and ends with the span: newline tokens right behind a picture belong to
    it and are to be counted into the range by whoever knows the tokens.

    Raises:
        InputError: Runs of media tokens and slice sizes do not fit each other.
    """
    del scheme, ordinal, dialect
    runs = span.embed_runs()
    if not runs or len(runs) != len(span.slice_sizes) or runs[0][0] == span.position.offset:
        raise InputError(
            f"{span} with {len(runs)} runs of media tokens",
            f"a canvas needs a marker before the thumbnail and a size for each run, not {len(span.slice_sizes)}",
        )
    first = runs[0][0] - 1
    base = builder.text_until(first)
    tiles = [
        _Tile(start - first, length, *token_grid(length, *size))
        for (start, length), size in zip(runs, span.slice_sizes, strict=True)
    ]
    thumbnail, slices, per_row = tiles[0], tiles[1:], _slices_per_row(tiles[1:])
    if slices:
        high, wide = slices[0].rows, slices[0].columns
        slices = [
            tile._replace(top=number // per_row * high, left=number % per_row * wide)
            for number, tile in enumerate(slices)
        ]
        rows, columns = len(slices) // per_row * high, per_row * wide
    else:
        rows, columns = thumbnail.rows, thumbnail.columns
    plane = _Plane(base, span.position.end - first)
    plane.thumbnail(thumbnail, rows, columns)
    for tile in slices:
        plane.slice(tile)
    for ended, following in pairwise(slices):
        between = range(ended.start + ended.length + 1, following.start - 1)
        plane.fill(between, [(ended.top + ended.rows - 1, columns)] * len(between))
    size = max(rows, columns) + 1
    builder.media(([base] * len(plane.rows), plane.rows, plane.columns), advance=size, extent=size)


class _Plane:
    """Row and column ids of a canvas under construction; what nobody places stands at the base."""

    def __init__(self, base: int, length: int) -> None:
        self.base = base
        self.rows = [base] * length
        self.columns = [base] * length

    def fill(self, tokens: range, corners: Sequence[tuple[int, int]]) -> None:
        """Put tokens at (row, column) of the canvas; tokens behind the span are not its own."""
        for token, (row, column) in zip(tokens, corners, strict=True):
            if token < len(self.rows):
                self.rows[token] = self.base + row
                self.columns[token] = self.base + column

    def thumbnail(self, tile: _Tile, rows: int, columns: int) -> None:
        """Spread the thumbnail over the canvas, with its markers just outside both corners."""
        down, across = _spread(tile.rows, rows), _spread(tile.columns, columns)
        self.fill(_tokens(tile), [(row, column) for row in down for column in across])
        outside = -1 if self.base else 0
        self.fill(range(1), [(outside, outside)])
        end = tile.start + tile.length
        self.fill(range(end, end + 1), [(rows, columns)])

    def slice(self, tile: _Tile) -> None:
        """Put a slice in its place, its markers on its first and last token."""
        down, across = range(tile.top, tile.top + tile.rows), range(tile.left, tile.left + tile.columns)
        corners = [(row, column) for row in down for column in across]
        marked = range(tile.start - 1, tile.start + tile.length + 1)
        self.fill(marked, [corners[0], *corners, corners[-1]])


def token_grid(num_tokens: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of tokens that an encoder makes of a grid of patches by merging squares of them.

    Args:
        num_tokens: Tokens of the picture or slice.
        rows: Rows of patches.
        columns: Columns of patches.

    Raises:
        InputError: No grid of that many tokens has about the proportions of the patches.
    """
    patches = rows * columns
    if 0 < num_tokens <= patches:
        side = round(math.sqrt(patches / num_tokens))
        if rows % side == columns % side == 0 and rows // side * (columns // side) == num_tokens:
            return rows // side, columns // side
        wide = max(1, round(math.sqrt(num_tokens / (rows / columns))))
        if num_tokens % wide == 0:
            return num_tokens // wide, wide
    raise InputError(f"{num_tokens} tokens of {rows} x {columns} patches", "they make no grid")


def _tokens(tile: _Tile) -> range:
    return range(tile.start, tile.start + tile.length)


def _slices_per_row(slices: Sequence[_Tile]) -> int:
    """Slices before the first line break: more than the end marker of one and the start marker of the next between two."""
    per_row = len(slices)
    for number, (tile, following) in enumerate(pairwise(slices), start=1):
        if following.start - (tile.start + tile.length) > 2:
            per_row = number
            break
    return per_row if per_row and len(slices) % per_row == 0 else len(slices)


def _spread(count: int, extent: int) -> list[int]:
    """`count` ids spread evenly over `[0, extent)`, both ends included, rounded half to even."""
    if count == 1:
        return [0]
    return [round(step * (extent - 1) / (count - 1)) for step in range(count)]
