"""A CSV of one's own traffic: a line per request, with the columns that any log can give.

`arrival_s` (or `arrival_ms`, `timestamp`, `time`) is seconds (or ms) since anything, or a wall clock; `prompt_tokens`, tokens of
text, or of text and pictures as a server counts them; `output_tokens`; `images`, how many, or the size of each as in
`720p;640x480` (height first); `image_hashes`, the identity of each, `;` between them; `request_id`, `session_id`, `priority`,
`slo_class`. `COLUMNS` has the other names of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.media import family
from epdsim.workload.csv_rows import ZERO_REMEDY, CsvTable, ZeroTokens, nanosecond_clock, settle_zero
from epdsim.workload.geometry import Geometries
from epdsim.workload.identity import TWO_SIZES_REMEDY, SizesOfHashes
from epdsim.workload.media import Position, insert_media, media_ref
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.sizes import MediaSize, SizeDistribution, TokenSizes, parse_size
from epdsim.workload.specs import MAX_HELD, NonNegativeInt
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.trace_files import TimedRow, in_order, line_error
from epdsim.workload.traces import TraceSpec

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "arrival": ("arrival_s", "arrival_ms", "arrival", "timestamp", "time"),
    "prompt_tokens": ("prompt_tokens", "text_tokens", "input_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "generated_tokens"),
    "images": ("images", "num_images", "image_sizes"),
    "image_hashes": ("image_hashes", "image_hash"),
    "request_id": ("request_id",),
    "session_id": ("session_id",),
    "priority": ("priority",),
    "slo_class": ("slo_class",),
}
REQUIRED = ("arrival", "prompt_tokens", "output_tokens")
EXAMPLE = "arrival_s,prompt_tokens,output_tokens,images"


class _Row(NamedTuple):
    prompt_tokens: int
    output_tokens: int
    sizes: tuple[tuple[int, ...], ...] | int
    hashes: tuple[str, ...]
    words: dict[str, str]


def _clock(name: str) -> Callable[[str], float]:
    """Cells of the column to milliseconds; ValueError for what is no time."""
    parse_ns = nanosecond_clock()
    unit_ms = 1.0 if name.lower().endswith("_ms") else 1e3

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            return parse_ns(text) / 1e6
        if not math.isfinite(number):
            raise ValueError("not a time")
        return number * unit_ms

    return parse


def _split(cell: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in cell.split(";") if one.strip())


def _sizes(cell: str) -> tuple[tuple[int, ...], ...] | int:
    """A count, or a size for each picture; ValueError for what is neither."""
    if not cell or cell.isdecimal():
        return int(cell or 0)
    return tuple(parse_size(one) for one in _split(cell))


class OwnCsvSpec(TraceSpec):
    """A CSV of one's own traffic.

    Attributes:
        columns: What the file calls a column, by the name here: `{prompt_tokens: usage.prompt}`.
        zero_tokens: What a line of 0 tokens means.
        image_size: Size of the pictures of lines that only count them.
        image_position: Where pictures stand in the prompt.
        prompt_includes_images: The model family that `prompt_tokens` counts pictures' tokens of too, as a server's
            `usage.prompt_tokens` does; or just that it does so, which needs an `image_size` of kind `tokens`.
        family_options: Constants of that family that the server had otherwise.
        shared_prefix_tokens: Tokens in front that all prompts share, out of `prompt_tokens`.
    """

    kind: Literal["csv"] = "csv"
    columns: dict[str, str] = Field(default={})
    zero_tokens: ZeroTokens = "refuse"
    image_size: SizeDistribution | None = None
    image_position: Position = "start"
    prompt_includes_images: bool | str = False
    family_options: dict[str, Any] = Field(default={})
    shared_prefix_tokens: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check(self) -> OwnCsvSpec:
        unknown = sorted(set(self.columns) - set(COLUMNS))
        if unknown:
            meant = next((name for name, known in COLUMNS.items() if unknown[0] in known), None)
            there = f"it is {meant!r} there, whatever the file calls it" if meant else f"there are {', '.join(COLUMNS)}"
            raise ValueError(f"columns has no {unknown[0]!r}: {there}")
        if isinstance(self.prompt_includes_images, str):
            try:
                family(self.prompt_includes_images, **self.family_options)
            except InputError as error:
                raise ValueError(f"prompt_includes_images: {error}") from error
        elif self.family_options:
            raise ValueError(
                "family_options are those of the family that prompt_includes_images names, and it names none"
            )
        elif self.prompt_includes_images and not isinstance(self.image_size, TokenSizes):
            raise ValueError(
                "prompt_includes_images: true needs an image_size of kind tokens, or nothing says how many are text; "
                "where pictures have sizes, name the model that counted them: prompt_includes_images: qwen3-vl-8b"
            )
        return self

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of the file; the first arrives at 0."""
        streams, geometries = KeyedStreams(seed, "own-csv"), self._geometries()
        table = CsvTable(path, "a CSV of requests")
        rows, sizes = in_order(self._timed_rows(table), path, self.reorder_ms), SizesOfHashes()
        for arrival_ms, line, row in self.cut.apply(rows, path, None):
            request_id = row.words.get("request_id") or f"csv-{line}"
            rng = streams.generator(request_id)
            media = self._media(row, request_id, streams)
            if row.hashes:
                try:
                    sizes.check(media)
                except ValueError as error:
                    raise line_error(path, line, "", str(error), TWO_SIZES_REMEDY) from error
            try:
                text = self._text_tokens(row.prompt_tokens, media, geometries)
            except InputError as error:
                raise error.at(f"{path}, line {line}") from error
            shared = min(self.shared_prefix_tokens, text)
            prefix = (TokenRun("csv/prefix", 0, shared),) if shared else ()
            own = [TokenRun(request_id, 0, text - shared)] if text > shared else []
            parts = (*prefix, *insert_media(own, media, self.image_position, rng))
            words = row.words
            yield WorkloadRequest(
                request_id,
                arrival_ms,
                parts,
                row.output_tokens,
                words.get("session_id", ""),
                int(words.get("priority") or 0),
                words.get("slo_class", ""),
            )

    def statements(self, path: Path) -> list[str]:
        """What reading the file assumes, and which of its columns say nothing here."""
        table = CsvTable(path, "a CSV of requests")
        places = self._places(table)
        unused = [name for place, name in enumerate(table.header) if place not in places.values()]
        shared = (
            f", but for {self.shared_prefix_tokens} tokens in front that all share" if self.shared_prefix_tokens else ""
        )
        told = [f"the text of every request is new{shared}"]
        if "images" in places:
            counted = "counts pictures too" if self.prompt_includes_images else "is text alone, pictures come on top"
            as_family = (
                f", as {self.prompt_includes_images} has them" if isinstance(self.prompt_includes_images, str) else ""
            )
            told.append(f"prompt_tokens {counted}{as_family}")
        told += [f"pictures of {self.image_size.summary()} where lines only count them"] if self.image_size else []
        return told + ([f"columns not used: {', '.join(unused)}"] if unused else [])

    def _geometries(self) -> Geometries | None:
        """Of the family that counted the pictures; None where none did."""
        named = self.prompt_includes_images
        return Geometries(family(named, **self.family_options)) if isinstance(named, str) else None

    def _text_tokens(self, prompt_tokens: int, media: Sequence[MediaRef], geometries: Geometries | None) -> int:
        """Tokens of a prompt that are text."""
        if not self.prompt_includes_images:
            return prompt_tokens
        if geometries is None:
            return max(1, prompt_tokens - sum(one.num_tokens for one in media))
        pictures = sum(geometries.of(one).prompt_tokens for one in media)
        if pictures > prompt_tokens:
            told = f"fewer than the {pictures:,} of its pictures in {self.prompt_includes_images}"
            remedy = "check their sizes (height first) and the model; leave prompt_includes_images out if they count text alone"
            raise InputError(f"{prompt_tokens:,} prompt tokens", told, remedy)
        return prompt_tokens - pictures

    def _places(self, table: CsvTable) -> dict[str, int]:
        """Places of the columns that the file has, by their name here."""
        places: dict[str, int] = {}
        for name, known in COLUMNS.items():
            given = self.columns.get(name)
            place = table.find(*([given] if given else known))
            if place is not None:
                places[name] = place
            elif given:
                have = ", ".join(table.header)
                raise InputError(f"columns.{name} = {given!r}", f"{table.path} has no such column", f"it has {have}")
            elif name in REQUIRED:
                rule = f"no column is {' or '.join(known)}"
                remedy = f"name it: columns: {{{name}: NAME}}; a CSV of requests begins with {EXAMPLE}"
                raise line_error(table.path, 1, ",".join(table.header), rule, remedy)
        return places

    def _timed_rows(self, table: CsvTable) -> Iterator[TimedRow[_Row]]:
        places = self._places(table)
        parse_ms, seen = _clock(table.header[places["arrival"]]), set[str]()
        words = [name for name in ("request_id", "session_id", "priority", "slo_class") if name in places]
        for cells in table.rows():
            values = {name: cells[place].strip() for name, place in places.items()}
            told = "needs seconds, or a time like 2026-11-29 18:15:46.68"
            try:
                time_ms = parse_ms(values["arrival"])
                told = "needs whole numbers of tokens"
                prompt, output = int(values["prompt_tokens"]), int(values["output_tokens"])
                told = "needs a number of images, or a size for each like 720p;640x480"
                sizes, hashes = _sizes(values.get("images", "")), _split(values.get("image_hashes", ""))
                told = "needs a whole number as priority"
                int(values.get("priority") or 0)
            except ValueError:
                raise table.error(cells, told) from None
            count = sizes if isinstance(sizes, int) else len(sizes)
            if count > MAX_HELD or (hashes and len(hashes) != count):
                rule = f"has {count} images and {len(hashes)} image_hashes"
                raise table.error(cells, rule, f"give each image a hash or none, and at most {MAX_HELD:,} images")
            if isinstance(sizes, int) and sizes and self.image_size is None:
                raise table.error(
                    cells, f"has {count} images whose size it does not say", "set image_size, for example to 720p"
                )
            if (request_id := values.get("request_id", "")) in seen:
                raise table.error(cells, f"has the request_id {request_id!r} of a line before", "give each its own")
            seen.update(filter(None, [request_id]))
            try:
                # A prompt may be pictures alone.
                settled = settle_zero(prompt or min(count, 1), output, self.zero_tokens, ("prompt", "output"))
            except ValueError as error:
                raise table.error(cells, str(error), ZERO_REMEDY) from error
            if settled:
                kept = prompt if count and not prompt else settled[0]
                yield time_ms, table.line, _Row(kept, settled[1], sizes, hashes, {name: values[name] for name in words})

    def _media(self, row: _Row, request_id: str, streams: KeyedStreams) -> list[MediaRef]:
        """The pictures of a line; what has no size there has the same one wherever its hash comes."""
        count = row.sizes if isinstance(row.sizes, int) else len(row.sizes)
        names = row.hashes or tuple(f"{request_id}/{index}" for index in range(count))
        if isinstance(row.sizes, tuple):
            return [media_ref(name, MediaSize(*size)) for name, size in zip(names, row.sizes, strict=True)]
        sizes = self.image_size
        return [media_ref(name, sizes.draw(streams.generator(name), 1)[0]) for name in names] if sizes else []
