"""Trace files line by line: opening, order of time, and which part of a trace is taken."""

from __future__ import annotations

import gzip
import heapq
import io
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.workload.specs import CHECK_PATH

T = TypeVar("T")

TimedRow = tuple[float, int, T]
"""Milliseconds on the trace's own clock, line number from 1, and the row."""


def require_file(path: Path, what: str, remedy: str = CHECK_PATH) -> Path:
    """The path itself.

    Args:
        path: Of a file.
        what: It is, for messages.
        remedy: Where it is not there.

    Raises:
        InputError: There is no such file.
    """
    if not path.is_file():
        rule = "is a folder, not a file" if path.is_dir() else "is no plain file" if path.exists() else "no such file"
        raise InputError(f"{what} {str(path)!r}", rule, remedy)
    return path


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines with their ends, plain or gzip by content; a byte order mark is dropped.

    Raises:
        InputError: The file is missing, unreadable, or its gzip stream is cut or damaged.
    """
    number = 0
    try:
        with require_file(path, "trace").open("rb") as plain:
            is_gzip = plain.peek(2)[:2] == b"\x1f\x8b"  # type: ignore[attr-defined]
            # The buffer reads lines in C, which the gzip module does not.
            lines = io.BufferedReader(gzip.GzipFile(fileobj=plain)) if is_gzip else plain  # type: ignore[arg-type]
            for number, line in enumerate(lines, start=1):
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise line_error(
            path, number + 1, "", f"the gzip stream is damaged ({error})", "fetch the file again"
        ) from error
    except OSError as error:
        raise InputError(f"trace {str(path)!r}", f"cannot be read ({error.strerror or error})") from error


def json_rows(
    path: Path,
    decoder: msgspec.json.Decoder[T],
    is_skipped: Callable[[bytes, int], bool] = lambda text, number: False,  # noqa: ARG005 - what is asked for
) -> Iterator[tuple[int, T]]:
    """The records of a JSON-lines file with their line numbers; empty lines are passed over.

    Args:
        path: Plain or gzip.
        decoder: Of one record.
        is_skipped: Whether a line, given with its number, is no record.

    Raises:
        InputError: A line is none; raised when it is reached.
    """
    for number, text in read_lines(path):
        if is_skipped(text, number):
            continue
        try:
            record = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not text.strip():
                continue
            rule, remedy = f"is not a record of the trace ({error})", "the line may be cut in half; complete or drop it"
            raise line_error(path, number, text.decode(errors="replace").rstrip(), rule, remedy) from error
        yield number, record


def line_error(path: Path, line: int, text: str, rule: str, remedy: str = "") -> InputError:
    """An error that names file and line and shows the start of the line."""
    shown = f" {text[:60]!r}{'...' if len(text) > 60 else ''}" if text else ""
    return InputError(f"{path}, line {line}{shown}", rule, remedy)


def in_order(rows: Iterable[TimedRow[T]], path: Path, reorder_ms: float = 0.0) -> Iterator[TimedRow[T]]:
    """The rows by time; rows of the same moment keep the order of the file.

    Args:
        rows: As the file has them.
        path: For messages.
        reorder_ms: How far back a row may lie behind the latest before it; so much of the trace is held in memory.

    Raises:
        InputError: A row lies further back.
    """
    latest = float("-inf")
    held: list[TimedRow[T]] = []
    for row in rows:
        time_ms = row[0]
        if time_ms < latest - reorder_ms:
            back = f"time goes back by {latest - time_ms:.6g} ms, more than reorder_ms {reorder_ms:g} allows"
            raise line_error(path, row[1], "", back, "sort the trace, or raise reorder_ms")
        latest = max(latest, time_ms)
        if not reorder_ms:
            yield row
            continue
        heapq.heappush(held, row)  # Line numbers differ, so rows themselves are never compared.
        while held[0][0] < latest - reorder_ms:
            yield heapq.heappop(held)
    while held:
        yield heapq.heappop(held)


@record
class TraceCut:
    """Which part of a trace is taken, and how fast it is replayed.

    Attributes:
        window_s: From and to (excluded), in seconds since the trace's first moment; the workload then starts at the window's start.
        limit: At most so many requests.
        rate_scale: 2 replays in half the time.

    Raises:
        InputError: The window is empty or starts before 0, the limit is below 1, or the scale is not a finite number above 0.
    """

    window_s: tuple[float, float] | None = None
    limit: int | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            raise InputError(
                f"window_s {list(self.window_s)}", "is no window", "give from and to in seconds, from at least 0"
            )
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit {self.limit}", "takes no request", "give at least 1")
        if not 0 < self.rate_scale < math.inf:
            raise InputError(f"rate_scale {self.rate_scale}", "is no pace", "give a finite number above 0")

    def apply(self, rows: Iterable[TimedRow[T]], path: Path, origin_ms: float | None) -> Iterator[TimedRow[T]]:
        """The rows taken, their times now the arrival times.

        Args:
            rows: In order of time.
            path: For messages.
            origin_ms: Where the trace's clock starts; None for the first row's time.

        Raises:
            InputError: No row is taken.
        """
        start_ms, end_ms = (0.0, float("inf")) if self.window_s is None else (bound * 1e3 for bound in self.window_s)
        taken, offset_ms = 0, 0.0
        for time_ms, line, row in rows:
            if origin_ms is None:
                origin_ms = time_ms
            offset_ms = time_ms - origin_ms
            if offset_ms >= end_ms:
                break
            if offset_ms >= start_ms:
                taken += 1
                yield (offset_ms - start_ms) / self.rate_scale, line, row
                if taken == self.limit:
                    return
        if not taken:
            window = f"the window {self.window_s} s of trace {str(path)!r}" if self.window_s else f"trace {str(path)!r}"
            remedy = f"the trace ends at {offset_ms / 1e3:.6g} s" if origin_ms is not None else "the file has no rows"
            raise InputError(window, "holds no requests", remedy)
