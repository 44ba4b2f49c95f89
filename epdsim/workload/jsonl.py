"""JSON-lines traces: Mooncake's form, and epdsim's own, which is Mooncake's plus the media of each request.

One object a line. Mooncake (FAST'25 release): `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one per block of
512 input tokens, equal ids for equal blocks. Ours adds, all optional: `mm_items`, each with `hash`, `modality`, `h`, `w`, `frames`,
`duration_s`, `num_tokens`, `file_bytes` and `offset`, the number of text tokens in front of it; `request_id`, `session_id`,
`priority`, `slo_class`; and `runs`, `[content, start, length]` each, for text that blocks do not say. `input_length` counts text:
media have the tokens that the model gives them. The first line may be a header (`TraceHeader`), which carries the version.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.core.prompt import TokenRun
from epdsim.workload.identity import TWO_SIZES_REMEDY, SizesOfHashes
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.specs import PositiveInt
from epdsim.workload.trace_files import TimedRow, TraceCut, in_order, json_rows, line_error
from epdsim.workload.trace_header import FORMAT, MOONCAKE_BLOCKS, VERSION, Blocks, TraceHeader, header_in, read_header
from epdsim.workload.traces import TraceSpec
from epdsim.workload.workload import Workload


class _Item(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    hash: str
    modality: Literal["image", "video", "audio"] = "image"
    h: int = 0
    w: int = 0
    frames: int = 1
    duration_s: float = 0.0
    offset: int = 0
    num_tokens: int = 0
    file_bytes: int = 0


class _Line(msgspec.Struct, omit_defaults=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    mm_items: list[_Item] = []
    request_id: str = ""
    session_id: str = ""
    priority: int = 0
    slo_class: str = ""
    runs: list[tuple[Any, int, int]] = []


class _StrictLine(_Line, forbid_unknown_fields=True):
    pass


def _content(given: Any) -> Hashable:
    """Content names as JSON has them: text, whole numbers, and lists of them, which are tuples here."""
    if isinstance(given, list):
        return tuple(_content(part) for part in given)
    if isinstance(given, str) or type(given) is int:
        return given
    raise ValueError(f"has the content {given!r}, which is not a text, a whole number or a list of them")


def _text(line: _Line, request_id: str, blocks: Blocks) -> list[TokenRun]:
    """The text of a line as runs, in blocks as far as it has ids; ValueError when lengths and ids disagree."""
    length = line.input_length
    if line.runs:
        if line.hash_ids:
            raise ValueError("has both runs and hash_ids")
        if sum(run[2] for run in line.runs) != length or any(
            start < 0 or run_length < 1 for _, start, run_length in line.runs
        ):
            raise ValueError(f"has runs that do not add up to input_length {length}")
        return [TokenRun(_content(content), start, run_length) for content, start, run_length in line.runs]
    return block_runs(line.hash_ids, length, request_id, blocks)


def block_runs(ids: Sequence[int], length: int, request_id: str, blocks: Blocks) -> list[TokenRun]:
    """Text in numbered blocks, the last one perhaps cut; what is longer is new.

    Raises:
        ValueError: There are more ids than blocks in the length.
    """
    block_tokens = blocks.num_tokens
    num_blocks = -(-length // block_tokens)
    if len(ids) > num_blocks:
        raise ValueError(f"has {len(ids)} hash_ids where {length} tokens fill {num_blocks} blocks of {block_tokens}")
    runs = [TokenRun((blocks.name, block), 0, block_tokens) for block in ids]
    rest = length - len(runs) * block_tokens
    if rest < 0:
        runs[-1] = TokenRun(runs[-1].content, 0, rest + block_tokens)
    elif rest:
        runs.append(TokenRun(request_id, 0, rest))
    return runs


def _parts(line: _Line, text: list[TokenRun]) -> Parts:
    """Text and media in order; ValueError when an offset lies outside the text or goes back."""
    if not line.mm_items:
        return tuple(text)
    parts: list[TokenRun | MediaRef] = []
    position, pending = 0, list(reversed(text))
    for item in line.mm_items:
        if not position <= item.offset <= line.input_length:
            raise ValueError(
                f"has an mm_item at offset {item.offset}, which is not from {position} to {line.input_length}"
            )
        while position < item.offset:
            run = pending.pop()
            taken = min(run.length, item.offset - position)
            parts.append(run if taken == run.length else TokenRun(run.content, run.start, taken))
            if taken < run.length:
                pending.append(TokenRun(run.content, run.start + taken, run.length - taken))
            position += taken
        parts.append(_media(item))
    return (*parts, *reversed(pending))


def _media(item: _Item) -> MediaRef:
    if min(item.h, item.w, item.num_tokens, item.file_bytes, item.duration_s) < 0 or item.frames < 1:
        raise ValueError(f"has an mm_item {item.hash!r} with a negative size or no frames")
    if not (item.h and item.w) and not item.num_tokens and not item.duration_s:
        raise ValueError(f"has an mm_item {item.hash!r} of 0 pixels that states neither num_tokens nor duration_s")
    return MediaRef(
        item.hash, item.modality, item.h, item.w, item.frames, item.duration_s, item.num_tokens, item.file_bytes
    )


def _check(line: _Line) -> None:
    """ValueError for numbers that no request has."""
    if not 0 <= line.timestamp < math.inf:
        raise ValueError(f"has timestamp {line.timestamp:g}, and time starts at 0")
    if line.input_length < 0 or line.output_length < 1:
        rule = "an output has at least 1 token and an input none below 0"
        raise ValueError(f"has input_length {line.input_length} and output_length {line.output_length}, but {rule}")
    if not line.input_length and not line.mm_items:
        raise ValueError("has input_length 0 and no mm_items, but a prompt has text or media")


def _request(line: _Line, number: int, arrival_ms: float, blocks: Blocks) -> WorkloadRequest:
    """The request of a line; ValueError when its parts contradict each other."""
    request_id = line.request_id or f"line-{number}"
    parts = _parts(line, _text(line, request_id, blocks))
    return WorkloadRequest(
        request_id, arrival_ms, parts, line.output_length, line.session_id, line.priority, line.slo_class
    )


def _timed_rows(path: Path, *, strict: bool) -> Iterator[TimedRow[_Line]]:
    decoder = msgspec.json.Decoder(_StrictLine if strict else _Line)
    for number, line in json_rows(path, decoder, is_skipped=lambda text, number: bool(header_in(text, path, number))):
        try:
            _check(line)
        except ValueError as error:
            raise line_error(path, number, "", str(error), "correct or drop the line") from error
        yield line.timestamp, number, line


def read_jsonl(
    path: Path,
    cut: TraceCut | None = None,
    *,
    strict: bool = True,
    block_tokens: int | None = None,
    reorder_ms: float = 0.0,
) -> Iterator[WorkloadRequest]:
    """The requests of a JSON-lines trace, lazily.

    Args:
        path: Plain or gzip.
        cut: The part that is taken; all when None.
        strict: Refuse keys that are not of the format (ours); foreign traces may have more keys.
        block_tokens: Tokens behind one of `hash_ids`; as the header says, or 512, when None.
        reorder_ms: How far a line may lie behind its predecessors.

    Raises:
        InputError: The file or a line of it cannot be used; raised when that line is reached.
    """
    blocks = read_header(path).numbering
    if block_tokens is not None:
        blocks = blocks._replace(num_tokens=block_tokens)
    rows, sizes = in_order(_timed_rows(path, strict=strict), path, reorder_ms), SizesOfHashes()
    for arrival_ms, number, line in (cut or TraceCut()).apply(rows, path, 0.0):
        remedy = "correct or drop the line"
        try:
            request = _request(line, number, arrival_ms, blocks)
            if line.mm_items:
                remedy = TWO_SIZES_REMEDY
                sizes.check(request.media)
        except ValueError as error:
            raise line_error(path, number, "", str(error), remedy) from error
        yield request


def header_of(workload: Workload, spec: object) -> TraceHeader:
    """The header of a workload's trace: where it comes from, and what its reader numbers blocks by.

    Args:
        workload: What will be written.
        spec: Its description.
    """
    blocks = spec.blocks if isinstance(spec, TraceSpec) else MOONCAKE_BLOCKS
    if isinstance(spec, JsonlSpec):
        blocks = read_header(Path(workload.source)).numbering
    return TraceHeader(
        format=FORMAT,
        version=VERSION,
        blocks=blocks.name,
        block_tokens=blocks.num_tokens,
        source=Path(workload.source).name,
        assumptions=workload.assumptions,
        concurrency=workload.concurrency or 0,
        keeps_arrivals=workload.keeps_arrivals,
    )


def write_jsonl(
    requests: Iterable[WorkloadRequest], path: Path, header: TraceHeader | None = None, told: str = ""
) -> int:
    """Write requests in epdsim's own form; `read_jsonl` gives the same requests back.

    The file appears when it is complete; gzip when its name ends in `.gz`.

    Args:
        requests: By time.
        path: Where to.
        header: The first line; one without provenance when None.
        told: The file in the user's terms, for errors.

    Returns:
        How many were written.

    Raises:
        InputError: Reading would not give a request back (a content that JSON has no form for, an empty run, time going back, a
            hash of two sizes), or the file cannot be written; there is no file then.
    """
    header = header or TraceHeader(format=FORMAT, version=VERSION)
    latest_ms, count, sizes = 0.0, 0, SizesOfHashes()
    with whole_file(path, told or f"workload file {str(path)!r}") as file:
        # The format and its version are written even where they are what the defaults say.
        file.write(msgspec.json.encode(header) + b"\n")
        for request in requests:
            if request.arrival_ms < latest_ms:
                rule = f"arrives at {request.arrival_ms:g} ms, before its predecessor"
                raise InputError(f"request {request.request_id!r}", rule, "write requests by time")
            try:
                sizes.check(request.media)
            except ValueError as error:
                raise InputError(f"request {request.request_id!r}", str(error), TWO_SIZES_REMEDY) from error
            file.write(_encode(request, header.numbering) + b"\n")
            latest_ms, count = request.arrival_ms, count + 1
    return count


_DECODER = msgspec.json.Decoder(_StrictLine)


def _encode(request: WorkloadRequest, blocks: Blocks) -> bytes:
    """The shortest line that reads back as the request: text in blocks, as new text, or run by run."""
    if request.patience_ms or request.leaves_ms:
        rule = "its client may leave, and clients that leave cannot be kept in a trace"
        raise InputError(f"request {request.request_id!r}", rule, "keep the description and run it as a workload")
    text = request.text
    line = _Line(
        timestamp=request.arrival_ms,
        input_length=sum(run.length for run in text),
        output_length=request.output_tokens,
        mm_items=list(_items(request.parts)),
        request_id=request.request_id,
        session_id=request.session_id,
        priority=request.priority,
        slo_class=request.slo_class,
    )
    forms: list[dict[str, Any]] = [{}, {"runs": [(run.content, run.start, run.length) for run in text]}]
    if ids := _block_ids(text, blocks.name):
        forms.insert(0, {"hash_ids": ids})
    reason = "would read back as a different one"
    for form in forms:
        try:
            encoded = msgspec.json.encode(msgspec.structs.replace(line, **form))
            back = _DECODER.decode(encoded)
            _check(back)
            if _request(back, 0, back.timestamp, blocks) == request:
                return encoded
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            reason = str(error)
    raise InputError(f"request {request.request_id!r}", reason, "such a request cannot be written as JSON")


def _block_ids(text: Sequence[TokenRun], name: str) -> list[int]:
    """Ids of the blocks that the text begins with, as far as it consists of them."""
    ids: list[int] = []
    for run in text:
        match run:
            case TokenRun(content=(str() as owner, int() as block), start=start) if owner == name:
                if start == 0:
                    ids.append(block)
            case _:
                break
    return ids


def _items(parts: Parts) -> Iterator[_Item]:
    offset = 0
    for part in parts:
        if isinstance(part, TokenRun):
            offset += part.length
        else:
            yield _Item(
                hash=part.content,
                modality=part.modality,  # type: ignore[arg-type]
                h=part.height,
                w=part.width,
                frames=part.num_frames,
                duration_s=part.duration_s,
                offset=offset,
                num_tokens=part.num_tokens,
                file_bytes=part.file_bytes,
            )


class MooncakeSpec(TraceSpec):
    """A Mooncake trace; further keys of a line are ignored.

    Attributes:
        block_tokens: Tokens behind one of `hash_ids`.
    """

    kind: Literal["mooncake-jsonl"] = "mooncake-jsonl"
    block_tokens: PositiveInt = MOONCAKE_BLOCKS.num_tokens

    @property
    def blocks(self) -> Blocks:
        """What the text consists of."""
        return MOONCAKE_BLOCKS._replace(num_tokens=self.block_tokens)

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file."""
        return read_jsonl(path, self.cut, strict=False, block_tokens=self.block_tokens, reorder_ms=self.reorder_ms)

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - one signature for all traces
        """What reading the file assumes."""
        return [f"equal hash_ids are equal blocks of {self.block_tokens} tokens, tokens without an id are new"]


class JsonlSpec(TraceSpec):
    """A trace in epdsim's own form; a key that is not of the form is refused. A closed loop that it was made from is one again.

    Attributes:
        block_tokens: Tokens behind one of `hash_ids`; as the header says, or 512, when absent.
    """

    kind: Literal["jsonl"] = "jsonl"
    block_tokens: PositiveInt | None = None

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file."""
        return read_jsonl(path, self.cut, strict=True, block_tokens=self.block_tokens, reorder_ms=self.reorder_ms)

    def statements(self, path: Path) -> list[str]:
        """What was assumed when the trace was made."""
        header = read_header(path)
        made = f"made from {header.source}" if header.source else ""
        return [one for one in (made, header.assumptions) if one]

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload."""
        workload = super().build(base_dir, seed)
        header = read_header(Path(workload.source))
        if not header.concurrency:
            return workload
        return replace(workload, concurrency=header.concurrency, keeps_arrivals=header.keeps_arrivals)
