"""Positions of a whole prompt as segments, and how a segment after the other is laid."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from epdsim.core.records import record


class Segment(NamedTuple):
    """Tokens from `start` on, one column of ids for each dimension; text is a `range`, so its length costs nothing."""

    start: int
    columns: tuple[Sequence[int], ...]


@record
class PositionLayout:
    """The positions of one request: its prompt in segments, then what it generates.

    Attributes:
        num_dims: Position ids of one token.
        num_prompt_tokens: Tokens that the segments cover.
        segments: In prompt order, without gaps.
        decode_delta: What a generated token's index in the sequence lacks to its position in every dimension (vLLM's
            `mrope_position_delta`): the highest position of the prompt, plus 1, less its tokens.
    """

    num_dims: int
    num_prompt_tokens: int
    segments: tuple[Segment, ...]
    decode_delta: int

    def columns(self, start: int = 0, end: int | None = None) -> tuple[list[int], ...]:
        """Positions of tokens `[start, end)`, by default to the end of the prompt; beyond it of generated tokens.

        Returns:
            `num_dims` lists of `end - start` ids each.
        """
        num_prompt = self.num_prompt_tokens
        end = num_prompt if end is None else end
        assert 0 <= start <= end, "a chunk is a range of tokens"
        ids: tuple[list[int], ...] = tuple([] for _ in range(self.num_dims))
        first = max(0, bisect_right(self.segments, start, key=lambda segment: segment.start) - 1)
        for segment in self.segments[first:]:
            if segment.start >= end:
                break
            low, high = max(0, start - segment.start), end - segment.start
            for column, part in zip(ids, segment.columns, strict=True):
                column.extend(part[low:high])
        if end > num_prompt:
            generated = range(max(start, num_prompt) + self.decode_delta, end + self.decode_delta)
            for column in ids:
                column.extend(generated)
        return ids


class LayoutBuilder:
    """Lays a prompt from its first token to its last.

    Attributes:
        num_dims: Position ids of one token.
        index: Tokens laid so far.
        base: Position that the next text token takes in every dimension.
    """

    __slots__ = ("_end", "_segments", "base", "index", "num_dims")

    def __init__(self, num_dims: int) -> None:
        self.num_dims = num_dims
        self.index = self.base = 0
        self._end = 0
        self._segments: list[Segment] = []

    def text_until(self, index: int) -> int:
        """Lay text up to a token and return the base there; text takes the same ids in every dimension."""
        assert index >= self.index, "tokens are laid in order"
        if index > self.index:
            ids = range(self.base, self.base + index - self.index)
            self._add((ids,) * self.num_dims, advance=len(ids), end=ids.stop)
        return self.base

    def media(self, columns: tuple[Sequence[int], ...], *, advance: int, extent: int) -> None:
        """Lay media tokens.

        Args:
            columns: Their ids, one column for each dimension.
            advance: How far the base moves.
            extent: One past their highest id, counted from the base.
        """
        self._add(columns, advance=advance, end=self.base + extent)

    def _add(self, columns: tuple[Sequence[int], ...], *, advance: int, end: int) -> None:
        assert len(columns) == self.num_dims, "one column for each dimension"
        self._segments.append(Segment(self.index, columns))
        self.index += len(columns[0])
        self.base += advance
        self._end = max(self._end, end)

    def finish(self, num_prompt_tokens: int) -> PositionLayout:
        """Lay the last text and close the prompt."""
        self.text_until(num_prompt_tokens)
        return PositionLayout(self.num_dims, self.index, tuple(self._segments), self._end - self.index)
