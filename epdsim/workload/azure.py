"""Azure's traces of LLM (2023) and LMM (2025) inference: CSV with a wall clock time, token counts, and perhaps image counts.

Columns (github.com/Azure/AzurePublicDataset): `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`, and `NumImages` in the LMM trace.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import model_validator

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload.distributions import SizeDistribution, TokenSizes
from epdsim.workload.media import Position, insert_media, media_ref
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.trace_files import TimedRow, TraceCut, in_order, line_error, read_lines
from epdsim.workload.traces import TraceSpec

ZeroTokens = Literal["refuse", "one", "skip"]
"""What a line of 0 context or generated tokens means: an error, a 1, or nothing."""

_FRACTION = re.compile(r"(?:\.(\d{1,9})\d*)?\s*(?:Z|UTC|([+-])(\d\d):?(\d\d))?")
_COLUMNS = {
    "timestamp": "TIMESTAMP",
    "contexttokens": "ContextTokens",
    "generatedtokens": "GeneratedTokens",
    "numimages": "NumImages",
}


class _Row(NamedTuple):
    context_tokens: int
    generated_tokens: int
    num_images: int


def _nanosecond_clock() -> Callable[[str], int]:
    """Wall clock text to nanoseconds; the whole second is parsed once for all rows in it.

    The digits after the point are kept to the nanosecond, beyond what `datetime` holds.
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


def _columns(header: list[str], path: Path) -> tuple[int, int, int, int | None]:
    """Places of time, context, generated and images."""
    names = [_COLUMNS.get(name.strip().lower()) for name in header]
    missing = [name for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens") if name not in names]
    if missing:
        rule = f"the first line must name the columns, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there"
        raise line_error(
            path, 1, ",".join(header), rule, "an Azure trace begins with TIMESTAMP,ContextTokens,GeneratedTokens"
        )
    images = names.index("NumImages") if "NumImages" in names else None
    return names.index("TIMESTAMP"), names.index("ContextTokens"), names.index("GeneratedTokens"), images


def _decoded(path: Path) -> Iterator[str]:
    for number, line in read_lines(path):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise line_error(
                path, number, repr(line[:40]), "is not UTF-8 text", "an Azure trace is CSV, plain or gzip"
            ) from error


def _timed_rows(path: Path, zero_tokens: ZeroTokens) -> Iterator[TimedRow[_Row]]:
    lines = csv.reader(_decoded(path), skipinitialspace=True)
    try:
        header = next(lines, None)
        if header is None:
            raise InputError(f"trace {str(path)!r}", "is empty")
        time_column, context_column, generated_column, images_column = _columns(header, path)
        parse_ns, first_ns = _nanosecond_clock(), None
        for cells in lines:
            if not cells:
                continue
            if len(cells) != len(header):
                rule = f"has {len(cells)} cells where the header has {len(header)}"
                raise line_error(
                    path, lines.line_num, ",".join(cells), rule, "the line may be cut in half; complete or drop it"
                )
            try:
                time_ns = parse_ns(cells[time_column].strip())
                context, generated = int(cells[context_column]), int(cells[generated_column])
                images = 0 if images_column is None else int(cells[images_column])
            except ValueError:
                rule = "needs a time like 2023-11-16 18:15:46.6805900 and whole numbers of tokens"
                raise line_error(path, lines.line_num, ",".join(cells), rule, "correct or drop the line") from None
            if first_ns is None:
                first_ns = time_ns
            if context < 1 or generated < 1 or images < 0:
                if min(context, generated, images) < 0 or zero_tokens == "refuse":
                    rule = f"has {context} context tokens, {generated} generated tokens and {images} images"
                    remedy = "tokens are at least 1: drop the line, or for a 0 set zero_tokens to one or skip"
                    raise line_error(path, lines.line_num, ",".join(cells), rule, remedy)
                if zero_tokens == "skip":
                    continue
                context, generated = max(context, 1), max(generated, 1)
            yield (time_ns - first_ns) / 1e6, lines.line_num, _Row(context, generated, images)
    except csv.Error as error:
        raise line_error(path, lines.line_num, "", f"is not CSV ({error})", "correct or drop the line") from error


class AzureCsvSpec(TraceSpec):
    """An Azure trace.

    Attributes:
        zero_tokens: What a line of 0 tokens means; the 2023 traces have none.
        image_size: Size of the pictures that `NumImages` counts, which the trace does not say.
        image_position: Where they stand in the prompt.
        context_includes_images: Whether `ContextTokens` counts the pictures' tokens too; needs an `image_size` of kind `tokens`.
    """

    kind: Literal["azure-csv"] = "azure-csv"
    zero_tokens: ZeroTokens = "refuse"
    image_size: SizeDistribution | None = None
    image_position: Position = "start"
    context_includes_images: bool = False

    @model_validator(mode="after")
    def _check_images(self) -> AzureCsvSpec:
        if self.context_includes_images and not isinstance(self.image_size, TokenSizes):
            raise ValueError(
                "context_includes_images needs an image_size of kind tokens, or nothing says how many tokens are text"
            )
        return self

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of the file; ids are line numbers, every request's text is new."""
        rows = in_order(_timed_rows(path, self.zero_tokens), path, self.reorder_ms)
        streams = KeyedStreams(seed, "azure-images")
        for arrival_ms, line, row in self.cut.apply(rows, path, None):
            request_id = f"azure-{line}"
            if row.num_images:
                yield self._with_images(path, line, arrival_ms, row, streams)
            else:
                yield WorkloadRequest(
                    request_id, arrival_ms, (TokenRun(request_id, 0, row.context_tokens),), row.generated_tokens
                )

    def _with_images(
        self, path: Path, line: int, arrival_ms: float, row: _Row, streams: KeyedStreams
    ) -> WorkloadRequest:
        request_id = f"azure-{line}"
        if self.image_size is None:
            raise line_error(
                path, line, "", f"has {row.num_images} images whose size the trace does not say", "set image_size"
            )
        rng = streams.generator(request_id)
        sizes = self.image_size.draw(rng, row.num_images)
        media = [media_ref(f"{request_id}/{index}", size) for index, size in enumerate(sizes)]
        text = row.context_tokens
        if self.context_includes_images:
            text = max(1, text - sum(size.num_tokens for size in sizes))
        parts = insert_media((TokenRun(request_id, 0, text),), media, self.image_position, rng)
        return WorkloadRequest(request_id, arrival_ms, parts, row.generated_tokens)

    def statements(self) -> list[str]:
        """What reading the file assumes."""
        said = ["the text of every request is new"]
        if self.image_size is not None:
            counted = "are part of" if self.context_includes_images else "come on top of"
            size = self.image_size.summary()
            said.append(
                f"images of size {size} at the {self.image_position}, each new, their tokens {counted} ContextTokens"
            )
        return said


def read_azure_csv(
    path: Path, cut: TraceCut | None = None, *, zero_tokens: ZeroTokens = "refuse"
) -> Iterator[WorkloadRequest]:
    """The requests of an Azure trace of text, lazily.

    Args:
        path: Plain or gzip.
        cut: The part that is taken; all when None.
        zero_tokens: What a line of 0 tokens means.

    Raises:
        InputError: The file or a line of it cannot be used; raised when that line is reached.
    """
    cut = cut or TraceCut()
    spec = AzureCsvSpec(
        path=str(path), zero_tokens=zero_tokens, window_s=cut.window_s, limit=cut.limit, rate_scale=cut.rate_scale
    )
    return spec.read(path, seed=0)
