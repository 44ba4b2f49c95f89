"""Azure's traces of LLM (2023) and LMM (2025) inference: CSV with a wall clock time, token counts, and perhaps image counts.

Columns (github.com/Azure/AzurePublicDataset): `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`, and `NumImages` in the LMM trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import model_validator

from epdsim.core.prompt import TokenRun
from epdsim.workload.csv_rows import ZERO_REMEDY, CsvTable, ZeroTokens, nanosecond_clock, settle_zero
from epdsim.workload.media import Position, insert_media, media_ref
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.sizes import SizeDistribution, TokenSizes
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.trace_files import TimedRow, TraceCut, in_order, line_error
from epdsim.workload.traces import TraceSpec


class _Row(NamedTuple):
    context_tokens: int
    generated_tokens: int
    num_images: int


def _timed_rows(path: Path, zero_tokens: ZeroTokens) -> Iterator[TimedRow[_Row]]:
    table = CsvTable(path, "an Azure trace")
    time_column, context_column, generated_column = table.require(
        "TIMESTAMP", "ContextTokens", "GeneratedTokens", example="TIMESTAMP,ContextTokens,GeneratedTokens"
    )
    images_column = table.find("NumImages")
    parse_ns, first_ns = nanosecond_clock(), None
    for cells in table.rows():
        try:
            time_ns = parse_ns(cells[time_column].strip())
            context, generated = int(cells[context_column]), int(cells[generated_column])
            images = 0 if images_column is None else int(cells[images_column])
        except ValueError:
            rule = "needs a time like 2023-11-16 18:15:46.6805900 and whole numbers of tokens"
            raise table.error(cells, rule) from None
        if first_ns is None:
            first_ns = time_ns
        if images < 0:
            raise table.error(cells, f"has {images} images")
        try:
            settled = settle_zero(context, generated, zero_tokens, ("context", "generated"))
        except ValueError as error:
            raise table.error(cells, str(error), ZERO_REMEDY) from error
        if settled:
            yield (time_ns - first_ns) / 1e6, table.line, _Row(*settled, images)


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
            told = f"has {row.num_images} images whose size the trace does not say"
            raise line_error(path, line, "", told, "set image_size, for example to 720p")
        rng = streams.generator(request_id)
        sizes = self.image_size.draw(rng, row.num_images)
        media = [media_ref(f"{request_id}/{index}", size) for index, size in enumerate(sizes)]
        text = row.context_tokens
        if self.context_includes_images:
            text = max(1, text - sum(size.num_tokens for size in sizes))
        parts = insert_media((TokenRun(request_id, 0, text),), media, self.image_position, rng)
        return WorkloadRequest(request_id, arrival_ms, parts, row.generated_tokens)

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - one signature for all traces
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
