"""How each kind of scheme lays one span: grids, frames with text between, clips with sound, absolute grids."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.core.positions.layout import LayoutBuilder
from epdsim.core.positions.records import MediaSpan, PositionScheme
from epdsim.core.positions.rules import ADVANCE, TIME_INDEX
from epdsim.core.rules import Dialect

Columns = tuple[Sequence[int], ...]


def place_grid(builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect) -> None:
    """One unbroken grid (Qwen2-VL, Qwen2.5-VL): temporal, row and column ids count from the base.

    Raises:
        InputError: The range does not hold as many media tokens as the grid, or holds them in pieces.
    """
    del ordinal
    _, rows, columns = scheme.merged_grid(span)
    times = _times(scheme, span, dialect)
    runs = span.embed_runs()
    expected = len(times) * rows * columns
    if len(runs) != 1 or runs[0][1] != expected:
        raise _mismatch(span, runs, f"one piece of {expected}")
    base = builder.text_until(runs[0][0])
    extents = (times[-1] + 1, rows, columns)
    builder.media(_grid(base, times, rows, columns), advance=dialect[ADVANCE](extents), extent=max(extents))


def place_frames(
    builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect
) -> None:
    """A grid for each frame, with the timestamp's text between (Qwen3-VL): time is told by text, temporal ids stand still.

    Raises:
        InputError: The range does not hold as many media tokens as the grid, or a frame lies in pieces.
    """
    del ordinal
    steps, rows, columns = scheme.merged_grid(span)
    frame = rows * columns
    runs = span.embed_runs()
    if sum(length for _, length in runs) != steps * frame or any(length % frame for _, length in runs):
        raise _mismatch(span, runs, f"{steps} frames of {frame}")
    extents = (1, rows, columns)
    for start, length in runs:
        for first in range(start, start + length, frame):
            base = builder.text_until(first)
            builder.media(_grid(base, (0,), rows, columns), advance=dialect[ADVANCE](extents), extent=max(extents))


def place_omni(builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect) -> None:
    """Pictures and clips as grids, sound as text, and a clip with its sound as both counted from one base (Qwen3-Omni)."""
    if span.modality == "audio":
        return
    if span.audio_embed is None:
        place_grid(builder, scheme, span, ordinal, dialect)
        return
    marks = _outer_marks(span, span.audio_embed)
    base = builder.text_until(span.position.offset + marks[0])
    columns, extent = _interleave(scheme, span, span.audio_embed[marks[0] : marks[1]], base, dialect)
    builder.media(columns, advance=extent, extent=extent)


def place_omni_shared_marks(
    builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect
) -> None:
    """As `place_omni`, but the start markers of vision and sound share one id, and so do their end markers (Qwen2.5-Omni)."""
    if span.audio_embed is None:
        place_omni(builder, scheme, span, ordinal, dialect)
        return
    marks = _outer_marks(span, span.audio_embed)
    if marks != (1, span.position.length - 1) or span.position.offset == 0:
        raise InputError(f"{span}", "a clip with its sound lies between one start and one end marker of each")
    base = builder.text_until(span.position.offset)
    columns, extent = _interleave(scheme, span, span.audio_embed[1:-1], base, dialect)
    marked = tuple([base - 1, *column, base + extent] for column in columns)
    builder.media(marked, advance=extent, extent=extent + 1)


def place_indexed(
    builder: LayoutBuilder, scheme: PositionScheme, span: MediaSpan, ordinal: int, dialect: Dialect
) -> None:
    """Sequence index, column, row and picture number, none of them counted from a base (XD-RoPE of HunYuan-VL).

    The encoder closes each row of tokens with one more, and may put one marker embedding before and one behind the grid; those two
    are numbered as text.

    Raises:
        InputError: The range does not hold the grid, with or without the two markers.
    """
    del dialect
    _, rows, columns = scheme.merged_grid(span)
    columns += 1
    runs = span.embed_runs()
    markers = runs[0][1] - rows * columns if len(runs) == 1 else -1
    if span.grid[0] != 1 or markers not in {0, 2}:
        raise _mismatch(span, runs, f"one piece of {rows * columns} or {rows * columns + 2} of one picture")
    base = builder.text_until(runs[0][0] + markers // 2)
    size = rows * columns
    ids = (range(base, base + size), *reversed(_grid(0, (0,), rows, columns)[1:]), [ordinal] * size)
    builder.media(ids, advance=size, extent=size)


def _times(scheme: PositionScheme, span: MediaSpan, dialect: Dialect) -> Sequence[int]:
    steps = span.grid[0]
    if scheme.tokens_per_second is None or span.modality != "video":
        return range(steps)
    return dialect[TIME_INDEX](steps, span.seconds_per_grid, scheme.tokens_per_second)


def _grid(base: int, times: Sequence[int], rows: int, columns: int) -> Columns:
    """Temporal, row and column ids of a grid in prompt order: time outermost, columns innermost."""
    frame_rows = [base + row for row in range(rows) for _ in range(columns)]
    return (
        [base + time for time in times for _ in range(rows * columns)],
        frame_rows * len(times),
        list(range(base, base + columns)) * (rows * len(times)),
    )


def _interleave(
    scheme: PositionScheme, span: MediaSpan, audio: bytes, base: int, dialect: Dialect
) -> tuple[tuple[list[int], ...], int]:
    """Ids of a clip's tokens mixed with those of its sound, and one past their highest, counted from the base.

    `audio` has one byte per mixed token, 1 where it is of the sound; both kinds keep their own order.
    """
    _, rows, columns = scheme.merged_grid(span)
    times = _times(scheme, span, dialect)
    num_audio = audio.count(1)
    if len(audio) - num_audio != len(times) * rows * columns:
        raise _mismatch(span, span.embed_runs(), f"{len(times) * rows * columns} beside its sound")
    video = _grid(base, times, rows, columns)
    mixed: list[list[int]] = []
    for column in video:
        seen, heard = iter(column), iter(range(base, base + num_audio))
        mixed.append([next(heard) if is_audio else next(seen) for is_audio in audio])
    return tuple(mixed), max(num_audio, times[-1] + 1, rows, columns)


def _outer_marks(span: MediaSpan, audio: bytes) -> tuple[int, int]:
    """First and one past the last token of a clip with sound, counted from the range; in between every token is of one of them."""
    video = span.position.is_embed or b""
    first, last = min(video.find(1), audio.find(1)), max(video.rfind(1), audio.rfind(1)) + 1
    if len(video) != len(audio) or first < 0 or any(map(int.__eq__, video[first:last], audio[first:last])):
        raise InputError(
            f"{span} with its own sound", "the masks of clip and sound do not share its tokens between them"
        )
    return first, last


def _mismatch(span: MediaSpan, runs: Sequence[tuple[int, int]], expected: str) -> InputError:
    held = " + ".join(str(length) for _, length in runs) or "0"
    return InputError(f"{span} holds {held} media tokens", f"its grid {span.grid} makes {expected}")
