"""BLIS's recorded traffic (TraceV2, inference-sim; Apache-2.0): CSV, microseconds, tokens per modality; a YAML header beside it.

Columns (sim/workload/tracev2.go): `request_id`, `arrival_time_us`, `input_tokens`, `output_tokens`, and of the others
`image_tokens`, `audio_tokens`, `video_tokens`, which `input_tokens` includes, `prefix_group` with `prefix_length`, which it does
not, `server_input_tokens`, which goes before `input_tokens` where a server reported it and there is no group, `session_id`,
`slo_class`, `vllm_priority`. Where the header says `session_context_growth: accumulate`, a round of a session states only what is
new in its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from epdsim.core.errors import InputError
from epdsim.core.files import read_whole
from epdsim.core.prompt import TokenRun
from epdsim.workload.csv_rows import ZERO_REMEDY, CsvTable, ZeroTokens, settle_zero
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.trace_files import TimedRow, in_order
from epdsim.workload.traces import TraceSpec

VERSIONS = (2, 3)
_MODALITIES = ("image", "audio", "video")
_NUMBERS = (
    "arrival_time_us",
    "input_tokens",
    "output_tokens",
    "server_input_tokens",
    "prefix_length",
    "vllm_priority",
    *(f"{modality}_tokens" for modality in _MODALITIES),
)
_TEXTS = ("request_id", "prefix_group", "session_id", "slo_class")
_MOST_HEADER_BYTES = 1 << 20


class _Row(NamedTuple):
    numbers: dict[str, int]
    texts: dict[str, str]
    own_tokens: int


def header_beside(path: Path) -> Path | None:
    """The YAML header of a trace, where it lies beside the CSV under the same name."""
    found = (path.with_name(path.name.partition(".")[0] + end) for end in (".yaml", ".yml"))
    return next((one for one in found if one.is_file()), None)


def _growth(path: Path) -> Literal["own", "accumulate"]:
    """What a round's tokens count, by the header.

    Raises:
        InputError: The header cannot be read, or is of a version that is not known.
    """
    beside = header_beside(path)
    if beside is None:
        return "own"
    try:
        header: Any = yaml.safe_load(read_whole(beside, _MOST_HEADER_BYTES))
        version, unit = header["trace_version"], header.get("time_unit", "microseconds")
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        rule = "is no header of a BLIS trace"
        raise InputError(f"{beside}, beside {path.name}", rule, "move it away, or put the trace's own there") from error
    if version not in VERSIONS or unit != "microseconds":
        rule = f"has trace_version {version!r} and time_unit {unit!r}"
        raise InputError(str(beside), rule, f"versions {VERSIONS[0]} and {VERSIONS[1]} in microseconds can be read")
    return "accumulate" if header.get("session_context_growth") == "accumulate" else "own"


def _timed_rows(path: Path, zero_tokens: ZeroTokens) -> Iterator[TimedRow[_Row]]:
    table = CsvTable(path, "a BLIS trace")
    table.require(
        "request_id",
        "arrival_time_us",
        "input_tokens",
        "output_tokens",
        example="request_id,client_id,...,input_tokens,output_tokens,...,arrival_time_us,...",
    )
    numbers = {name: place for name in _NUMBERS if (place := table.find(name)) is not None}
    texts = {name: place for name in _TEXTS if (place := table.find(name)) is not None}
    for cells in table.rows():
        try:
            values = {name: int(cells[place] or 0) for name, place in numbers.items()}
        except ValueError:
            raise table.error(cells, f"needs whole numbers in {', '.join(numbers)}") from None
        negative = [name for name, value in values.items() if value < 0]
        if negative:
            raise table.error(cells, f"has {negative[0]} {values[negative[0]]}")
        words = {name: cells[place] for name, place in texts.items()}
        reported = 0 if words.get("prefix_group") else values.get("server_input_tokens", 0)
        own = (reported or values["input_tokens"]) - sum(values.get(f"{one}_tokens", 0) for one in _MODALITIES)
        if own < 0:
            raise table.error(cells, f"has {-own} more tokens of media than of the whole input")
        try:
            whole = own + sum(value for name, value in values.items() if name.removesuffix("_tokens") in _MODALITIES)
            settled = settle_zero(whole, values["output_tokens"], zero_tokens, ("input", "output"))
        except ValueError as error:
            raise table.error(cells, str(error), ZERO_REMEDY) from error
        if settled:
            values["output_tokens"] = settled[1]
            yield values["arrival_time_us"] / 1e3, table.line, _Row(values, words, own + settled[0] - whole)


def _in_context(rows: Iterable[TimedRow[_Row]], *, grows: bool) -> Iterator[TimedRow[tuple[_Row, int | None]]]:
    """Rows with the tokens that their session said before; None for a row that stands alone."""
    said: dict[str, int] = {}
    for time_ms, line, row in rows:
        session_id = row.texts.get("session_id", "") if grows else ""
        before = said.get(session_id, 0) if session_id else None
        if before is not None:
            said[session_id] = before + row.own_tokens + row.numbers["output_tokens"]
        yield time_ms, line, (row, before)


class BlisSpec(TraceSpec):
    """A BLIS trace.

    Attributes:
        zero_tokens: What a line of 0 tokens means: a request that failed has no output.
    """

    kind: Literal["blis-csv"] = "blis-csv"
    zero_tokens: ZeroTokens = "refuse"

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file, at the time they were meant for; the tokens of a modality are one item."""
        rows = _in_context(
            in_order(_timed_rows(path, self.zero_tokens), path, self.reorder_ms), grows=_growth(path) == "accumulate"
        )
        for arrival_ms, _, (row, before) in self.cut.apply(rows, path, 0.0):
            request_id, session_id = f"blis-{row.texts['request_id']}", row.texts.get("session_id", "")
            text = TokenRun(request_id, 0, row.own_tokens)
            if before is not None:
                # What a session has said so far is one text, of which each round's prompt is a longer beginning.
                text = TokenRun(("blis-session", session_id), 0, before + row.own_tokens)
            yield WorkloadRequest(
                request_id,
                arrival_ms,
                _parts(row, request_id, text),
                row.numbers["output_tokens"],
                session_id,
                row.numbers.get("vllm_priority", 0),
                row.texts.get("slo_class", ""),
            )

    def statements(self, path: Path) -> list[str]:
        """What reading the file assumes."""
        told = ["the tokens of a modality are one item, in front of the request's own text, each new"]
        if _growth(path) == "accumulate":
            told.append("a round's prompt is all that its session said before, then its own text")
        return told


def _parts(row: _Row, request_id: str, text: TokenRun) -> Parts:
    group, length = row.texts.get("prefix_group", ""), row.numbers.get("prefix_length", 0)
    prefix = (TokenRun(("blis-prefix", group), 0, length),) if group and length else ()
    tokens = {modality: row.numbers.get(f"{modality}_tokens", 0) for modality in _MODALITIES}
    media = [MediaRef(f"{request_id}/{name}", name, num_tokens=count) for name, count in tokens.items() if count]
    return (*prefix, *media, *((text,) if text.length else ()))
