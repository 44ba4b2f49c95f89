"""Event files: newline-delimited JSON behind a header line that says what the file is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast, get_args

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.events.schema import AnyEvent, Event

FORMAT = "epdsim-events"
VERSION = 1
_UNREADABLE = (OSError, EOFError, zlib.error)
"""Missing or unreadable files, and gzip streams that are cut or damaged."""
_CUT = "the file may be cut; write it again"


class NdjsonWriter:
    """Writes events to a file; the file appears under its name only once it is complete.

    Args:
        path: Target; `.gz` compresses.
        about: Further facts for the header, for example scenario name and seed.
    """

    def __init__(self, path: Path, about: Mapping[str, Any] | None = None) -> None:
        self._encoder = msgspec.json.Encoder()
        header = self._line({"format": FORMAT, "version": VERSION, **(about or {})})
        self._whole = whole_file(path, f"event file {str(path)!r}")
        self._file = self._whole.__enter__()
        self._file.write(header)

    def __call__(self, event: Event) -> None:
        """Write one event."""
        self._file.write(self._line(event))

    def _line(self, record: object) -> bytes:
        return self._encoder.encode(record) + b"\n"

    def __enter__(self) -> Self:
        """Use as a context so that a failed run leaves no half-written file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the file in its place, or remove it when the run failed; InputError when it cannot be written."""
        self._whole.__exit__(kind, error, trace)


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a JSON-lines file as a mapping; empty when it is none.

    Raises:
        InputError: The file is missing or not text.
    """
    try:
        with _open(path) as file:
            first = file.readline(1 << 26)
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"file {str(path)!r}", f"it cannot be read ({reason})", "check the path") from error
    try:
        header = msgspec.json.decode(first)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", header) if isinstance(header, dict) else {}


def read_events(path: Path, unknown: dict[str, int] | None = None) -> Iterator[AnyEvent]:
    """The events of a file, in file order; all else as `numbered_events` has it."""
    return (event for _, event in numbered_events(path, unknown))


def numbered_events(path: Path, unknown: dict[str, int] | None = None) -> Iterator[tuple[int, AnyEvent]]:
    """The events of a file, in file order, each with the number of its line; the header is line 1.

    Args:
        path: The file.
        unknown: Counts events of kinds that epdsim does not know, by kind, so that they are passed over; None refuses them.

    Raises:
        InputError: The file is missing, no event file, of a newer version, or a line is no event; with the line number.
    """
    header = read_header(path)
    if header.get("format") != FORMAT:
        raise InputError(
            f"file {str(path)!r}", "its first line is not the header of an event file", "write one with --events"
        )
    if header.get("version") != VERSION:
        raise InputError(
            f"file {str(path)!r}", f"its version is {header.get('version')!r}, not {VERSION}", "update epdsim"
        )
    decoder = msgspec.json.Decoder(AnyEvent)
    number = 1
    try:
        with _open(path) as file:
            next(file)
            for number, line in enumerate(file, start=2):
                if unknown is None or (kind := _kind_of(line)) in _KINDS:
                    yield number, decoder.decode(line)
                else:
                    unknown[kind] = unknown.get(kind, 0) + 1
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {number}", f"not an event ({error})", _CUT) from error
    except _UNREADABLE as error:
        raise InputError(f"{path}, after line {number}", f"it cannot be read ({error})", _CUT) from error


class _Kind(msgspec.Struct):
    """The one field of an event that says what it is."""

    kind: str


_KINDS = frozenset(kind.__name__ for kind in get_args(AnyEvent))
_kind_decoder = msgspec.json.Decoder(_Kind)


def _kind_of(line: bytes) -> str:
    return _kind_decoder.decode(line).kind


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))
