"""Replay of what a real vLLM put on the wire and accepted from it: items, extracted features, request bodies.

A recording is a folder with `META.json` (the release, and how many lines there are) and `items`, `extracts` and `requests` as
NDJSON, plain (`.jsonl`) or gzipped (`.jsonl.gz`). The replay reads one line at a time and judges with the dialect of the recorded
release.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.items import PlaceholderRange
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import FeatureTables, Rendered, check_tables, extract_features
from epdsim.sut.replay import ReplayCount, ReplayReport
from epdsim.wire import (
    GenerateRequest,
    PickleRefusedError,
    blob_size,
    decode_blob,
    encode_blob,
    find_faults,
    item_from_neutral,
    item_to_neutral,
)

L = TypeVar("L", bound=msgspec.Struct)
L_contra = TypeVar("L_contra", bound=msgspec.Struct, contravariant=True)

MAX_ERRORS = 4
"""Errors that a recorder keeps of one body; with so many there may have been more."""

_TOLD_CHARS = 400


class _Meta(msgspec.Struct, frozen=True):
    vllm: str
    items: int | None = None
    extracts: int | None = None
    requests: int | None = None


class _Item(msgspec.Struct, frozen=True):
    item: dict[str, Any]
    b64: str
    reencodes_identically: bool = True


class _Placeholder(msgspec.Struct, frozen=True):
    offset: int
    length: int


class _Extract(msgspec.Struct, frozen=True):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Placeholder]]
    mm_kwargs: dict[str, list[dict[str, Any] | None]]
    declared_metadata_fields: dict[str, list[str]] = {}
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None
    error: str | None = None


class _Error(msgspec.Struct, frozen=True):
    loc: list[str | int]
    msg: str


class _Request(msgspec.Struct, frozen=True):
    body: Any
    verdict: str
    errors: list[_Error] | None = None


class _Tally:
    """Counts of one kind of comparison, and its first difference."""

    def __init__(self, what: str) -> None:
        self.what, self.equal, self.total = what, 0, 0
        self.first: tuple[str, ...] = ()

    def compare(self, place: str, field: str, recorded: object, ours: object) -> bool:
        """Count one comparison and remember the first that fails."""
        self.total += 1
        self.equal += recorded == ours
        if recorded != ours and not self.first:
            self.first = (
                f"{place}, {field} ({self.what})",
                f"  recorded: {_told(recorded)}",
                f"  ours:     {_told(ours)}",
            )
        return recorded == ours

    @property
    def count(self) -> ReplayCount:
        """The row of the report."""
        return ReplayCount(self.what, self.equal, self.total)


def replay_wire(path: Path) -> ReplayReport:
    """Replay a recording of the wire.

    Args:
        path: The folder.

    Raises:
        InputError: Something is missing, cut off, or no recording: with the file and the line.
    """
    meta = _read_meta(path)
    try:
        dialect = named(f"vllm-{meta.vllm}")
    except InputError as error:
        raise error.at(str(path / "META.json")) from None
    tallies = [
        *_replay(path, "items", _Item, meta.items, _ItemReplay()),
        *_replay(path, "extracts", _Extract, meta.extracts, _ExtractReplay(dialect)),
        *_replay(path, "requests", _Request, meta.requests, _RequestReplay(dialect)),
    ]
    return ReplayReport(
        recording=str(path),
        release=f"vllm {meta.vllm}",
        counts=tuple(one.count for one in tallies),
        first_difference=next((one.first for one in tallies if one.first), ()),
        notes=("messages are compared by their meaning: which rule refused, not its words",),
    )


class _ItemReplay:
    """Every recorded item to its blob and back."""

    def __init__(self) -> None:
        self.tallies = [_Tally("items byte-equal both ways"), _Tally("blob sizes told from shapes alone")]

    def __call__(self, place: str, line: _Item) -> None:
        item = item_from_neutral(line.item)
        both, size = self.tallies
        size.compare(place, "length of b64", len(line.b64), blob_size(item))
        encoded = encode_blob(item)
        if encoded != line.b64:
            at = next((i for i, (a, b) in enumerate(zip(line.b64, encoded, strict=False)) if a != b), 0)
            both.compare(place, f"b64{_differing_field(line)}, from character {at}", line.b64[at:], encoded[at:])
            return
        try:
            decoded = decode_blob(line.b64)
        except InputError as error:
            both.compare(place, "b64", "decodes", str(error))
            return
        again = encode_blob(decoded) == line.b64
        if again != line.reencodes_identically:
            both.compare(place, "reencodes_identically", line.reencodes_identically, again)
            return
        both.compare(place, "item", _canonical(line.item), _canonical(item_to_neutral(decoded)))


def _differing_field(line: _Item) -> str:
    """The first field in which the recorded blob is not the recorded item; nothing when it is none of them.

    Raises:
        PickleRefusedError: The blob holds a pickle, which no release writes where its insecure switch is off.
    """
    try:
        theirs = item_to_neutral(decode_blob(line.b64, "b64"))
    except PickleRefusedError:
        raise
    except InputError:
        return ""
    names = [name for name in {**line.item, **theirs} if line.item.get(name) != theirs.get(name)]
    return f" of field {names[0]!r}" if names else ""


class _ExtractReplay:
    """Every recorded rendering through the release's rules and through the ideal ones."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.tallies = [
            _Tally("extracts rendered by the ideal dialect"),
            _Tally(f"extracts equal in the {dialect.name} dialect"),
        ]

    def __call__(self, place: str, line: _Extract) -> None:
        rendered = Rendered(
            TokenPrompt(()),
            line.mm_hashes,
            {
                m: [PlaceholderRange(one.offset, one.length) for one in ranges]
                for m, ranges in line.mm_placeholders.items()
            },
            {
                m: [
                    None if one is None else item_from_neutral(one, f"mm_kwargs.{m}[{i}]")
                    for i, one in enumerate(items)
                ]
                for m, items in line.mm_kwargs.items()
            },
        )
        ideal, release = self.tallies
        recorded: object = _meaning(line.error) if line.error else (line.kwargs_data, line.mm_metadata)
        release.compare(place, "result", recorded, _extracted(rendered, line, self._dialect))
        ours = _extracted(rendered, line, IDEAL)
        if line.error is None:
            ideal.compare(place, "payload and metadata", recorded, ours)
        else:
            # What the release refuses has no recorded tables. The ideal must give complete ones, unless its input is at fault.
            ideal.compare(place, "result", _fault_of_input(rendered) or "complete tables", _completeness(ours, line))


def _fault_of_input(rendered: Rendered) -> str:
    """What is wrong with hashes, placeholders and items themselves, whatever metadata are made of them."""
    try:
        check_tables(FeatureTables(rendered.mm_hashes, rendered.mm_placeholders, rendered.mm_items or None))
    except InputError as error:
        return _meaning(str(error))
    return ""


def _extracted(rendered: Rendered, line: _Extract, dialect: Dialect) -> tuple[Any, Any] | str:
    """The two data tables as plain JSON, or the meaning of the refusal."""
    try:
        tables = extract_features(rendered, lambda m: line.declared_metadata_fields.get(m, []), dialect=dialect)
    except InputError as error:
        return _meaning(str(error))
    assert tables is not None, "a recorded extract has media"
    blobs = tables.convert(encode_blob)
    return blobs.kwargs_data, blobs.mm_metadata


def _completeness(ours: tuple[Any, Any] | str, line: _Extract) -> str:
    if isinstance(ours, str):
        return ours
    shape = {modality: len(hashes) for modality, hashes in line.mm_hashes.items()}
    is_complete = all(table is not None and {m: len(slots) for m, slots in table.items()} == shape for table in ours)
    return "complete tables" if is_complete else "incomplete tables"


class _RequestReplay:
    """Every recorded body before the release's rules."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.tallies = [
            _Tally(f"request verdicts equal in the {dialect.name} dialect"),
            _Tally(f"error locations equal in the {dialect.name} dialect"),
        ]

    def __call__(self, place: str, line: _Request) -> None:
        verdicts, locations = self.tallies
        faults = find_faults(GenerateRequest, line.body, self._dialect)
        agree = verdicts.compare(place, "verdict", line.verdict, "reject" if faults else "accept")
        if not agree and verdicts.first[0].startswith(f"{place}, "):
            verdicts.first += (f"  recorded errors: {line.errors}", f"  our errors: {[str(one) for one in faults]}")
        if agree and line.errors:
            recorded, ours = _places(one.loc for one in line.errors), _places(one.loc for one in faults)
            if len(line.errors) >= MAX_ERRORS:
                ours = [one for one in ours if one in recorded]
            locations.compare(place, "errors", recorded, ours)


def _places(locations: Iterable[Sequence[str | int]]) -> list[str]:
    """Locations without the names of validators that the release's schema inserts, each once."""
    plain = {
        ".".join(str(part) for part in loc if "[" not in str(part))
        for loc in locations
        if not any(str(part).startswith("is-instance[") for part in loc)
    }
    return sorted(plain)


_MEANINGS: tuple[tuple[str, str], ...] = (
    ("modalities", "modalities"),
    ("overlap", "overlap"),
    ("length", "length"),
    ("within", "bounds"),
    ("leaves the prompt", "bounds"),
    ("metadata-only", "metadata-only"),
)


def _meaning(message: str) -> str:
    """What a message is about: the rule, and for modalities the table; the message itself when it is about nothing known."""
    found = next((meaning for word, meaning in _MEANINGS if word in message), message)
    tables = [name for name in ("mm_placeholders", "kwargs_data", "mm_metadata") if name in message]
    return f"{found} of {tables[0]}" if found == "modalities" and tables else found


def _canonical(value: object) -> str:
    """Text that is equal exactly for equal JSON, field order included."""
    return json.dumps(value)


def _told(value: object) -> str:
    text = str(value)
    return text if len(text) <= _TOLD_CHARS else f"{text[:_TOLD_CHARS]}... ({len(text)} characters)"


class _Replay(Protocol[L_contra]):
    """Compares one line after the other."""

    tallies: list[_Tally]

    def __call__(self, place: str, line: L_contra) -> None: ...


def _replay(folder: Path, name: str, kind: type[L], expected: int | None, replay: _Replay[L]) -> list[_Tally]:
    count = 0
    file = _find(folder, name)
    for count, line in _read_lines(file, kind):
        try:
            replay(f"{file.name}, line {count}", line)
        except InputError as error:
            raise error.at(f"{file}, line {count}") from error
    if expected is not None and count != expected:
        raise InputError(f"{file} has {count} lines", f"META.json says {expected}", "fetch the recording again")
    return replay.tallies


def _find(folder: Path, name: str) -> Path:
    candidates = [folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"]
    found = next((one for one in candidates if one.is_file()), None)
    if found is None:
        raise InputError(
            f"{folder}", f"no {name}.jsonl and no {name}.jsonl.gz in it", "give the folder of a wire recording"
        )
    return found


def _read_meta(folder: Path) -> _Meta:
    file = folder / "META.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Meta)
    except OSError as error:
        raise InputError(
            f"{file}", f"it cannot be read ({error.strerror})", "give the folder of a wire recording"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{file}", f"it does not name a release ({error})") from None


def _read_lines(file: Path, kind: type[L]) -> Iterator[tuple[int, L]]:
    number = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                yield number, msgspec.convert(json.loads(text), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise InputError(
            f"{file}, line {number}", f"it is no line of {kind.__name__.strip('_').lower()}s ({error})"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{file}, line {number + 1}", f"it cannot be read ({error})", "fetch the recording again"
        ) from None
