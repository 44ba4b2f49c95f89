"""CSV traces row by row: header, cells by the name of their column, times, and errors that name file, line and value."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from epdsim.core.errors import InputError
from epdsim.workload.trace_files import line_error, read_lines

ZeroTokens = Literal["refuse", "one", "skip"]
"""What a line of 0 prompt or output tokens means: an error, a 1, or nothing."""

_FRACTION = re.compile(r"(?:\.(\d{1,9})\d*)?\s*(?:Z|UTC|([+-])(\d\d):?(\d\d))?")


class CsvTable:
    """A CSV file whose first line names the columns: any order, any case, more columns than are asked for.

    Args:
        path: Plain or gzip.
        told: What the file should be, for messages ("an Azure trace").

    Attributes:
        header: Names as they stand.
        line: Number of the line that was read last.

    Raises:
        InputError: The file is missing, empty, or no text, or something else than a comma stands between its cells.
    """

    def __init__(self, path: Path, told: str) -> None:
        self.path, self._told = path, told
        self._lines = csv.reader(self._decoded(), skipinitialspace=True)
        header = next(self._checked(), None)
        if header is None:
            raise InputError(f"trace {str(path)!r}", "is empty")
        check_commas(header, path, self.line)
        self.header = [name.strip() for name in header]
        self._names = [name.lower() for name in self.header]

    @property
    def line(self) -> int:
        """Number of the line that was read last."""
        return self._lines.line_num

    def find(self, *names: str) -> int | None:
        """Place of the first of some names that the header has."""
        return next((self._names.index(name.lower()) for name in names if name.lower() in self._names), None)

    def require(self, *columns: str, example: str) -> list[int]:
        """Places of columns that must be there.

        Raises:
            InputError: With those that are not.
        """
        places = {name: self.find(name) for name in columns}
        missing = [name for name, place in places.items() if place is None]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            rule = f"the first line must name the columns, and {', '.join(missing)} {verb} not there"
            raise line_error(self.path, 1, ",".join(self.header), rule, f"{self._told} begins with {example}")
        return [place for place in places.values() if place is not None]

    def rows(self) -> Iterator[list[str]]:
        """The cells of each line that is not empty.

        Raises:
            InputError: A line is no CSV, or has not as many cells as the header.
        """
        for cells in self._checked():
            if not cells:
                continue
            if len(cells) != len(self.header):
                rule = f"has {len(cells)} cells where the header has {len(self.header)}"
                raise self.error(cells, rule, "the line may be cut in half; complete or drop it")
            yield cells

    def error(self, cells: list[str], rule: str, remedy: str = "correct or drop the line") -> InputError:
        """An error about the line that was read last."""
        return line_error(self.path, self.line, ",".join(cells), rule, remedy)

    def _decoded(self) -> Iterator[str]:
        for number, line in read_lines(self.path):
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                rule, remedy = "is not UTF-8 text", f"{self._told} is CSV, plain or gzip"
                raise line_error(self.path, number, repr(line[:40]), rule, remedy) from error

    def _checked(self) -> Iterator[list[str]]:
        try:
            yield from self._lines
        except csv.Error as error:
            raise line_error(self.path, self.line, "", f"is not CSV ({error})", "correct or drop the line") from error


def check_commas(header: Sequence[str], path: Path, line: int) -> None:
    """Refuse a first line that is one cell because something else stands between its names; every form has three at least.

    Such a file is not read as it is, for `;` stands between the pictures of a cell.

    Raises:
        InputError: With what stands there.
    """
    for separator, told in ((";", "';'"), ("\t", "a tab"), ("|", "'|'")):
        if len(header) == 1 and header[0].count(separator) > 1:
            raise line_error(
                path, line, header[0], f"has {told} between its cells", "write the file with commas between them"
            )


def settle_zero(prompt: int, output: int, policy: ZeroTokens, names: tuple[str, str]) -> tuple[int, int] | None:
    """Prompt and output tokens of a request, None for a line to leave out.

    Args:
        prompt: As the line has them.
        output: As the line has them.
        policy: What a 0 means.
        names: What the trace calls them, for messages.

    Raises:
        ValueError: The line has to be refused.
    """
    if prompt >= 1 and output >= 1:
        return prompt, output
    if min(prompt, output) < 0 or policy == "refuse":
        raise ValueError(f"has {prompt} {names[0]} tokens and {output} {names[1]} tokens")
    return None if policy == "skip" else (max(prompt, 1), max(output, 1))


ZERO_REMEDY = "tokens are at least 1: drop the line, or for a 0 set zero_tokens to one or skip"


def nanosecond_clock() -> Callable[[str], int]:
    """Wall clock text to nanoseconds; the whole second is parsed once for all rows in it.

    The digits after the point are kept to the nanosecond, beyond what `datetime` holds. The function raises ValueError for
    anything else.
    """
    seconds_text, seconds = "", 0

    def parse(text: str) -> int:
        nonlocal seconds_text, seconds
        if text[:19] != seconds_text:
            seconds = int(datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp())
            seconds_text = text[:19]
        rest = text[20:]
        if text[19:20] == "." and rest.isdecimal() and len(rest) <= 9:
            return seconds * 10**9 + int(rest.ljust(9, "0"))
        match = _FRACTION.fullmatch(text, 19)
        if match is None:
            raise ValueError("not a time")
        fraction, sign, hours, minutes = match.groups()
        offset_s = (int(hours) * 60 + int(minutes)) * (-60 if sign == "+" else 60) if sign else 0
        return (seconds + offset_s) * 10**9 + int((fraction or "0").ljust(9, "0"))

    return parse
