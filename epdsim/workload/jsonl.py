"""JSON-lines traces: Mooncake's form, and epdsim's own, which is Mooncake's plus the media of each request.

One object a line. Mooncake (FAST'25 release): `timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one per block of
512 input tokens, equal ids for equal blocks. Ours adds, all optional: `mm_items`, each with `hash`, `modality`, `h`, `w`, `frames`,
`duration_s`, `num_tokens`, `file_bytes` and `offset`, the number of text tokens in front of it; `request_id`, `session_id`,
`priority`, `slo_class`; and `runs`, `[content, start, length]` each, for text that blocks do not say. `input_length` counts text:
media have the tokens that the model gives them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.core.prompt import TokenRun
from epdsim.workload.media import Parts
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.specs import PositiveInt
from epdsim.workload.trace_files import TimedRow, TraceCut, in_order, line_error, read_lines
from epdsim.workload.traces import TraceSpec

MOONCAKE_BLOCK_TOKENS = 512


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


def _text(line: _Line, request_id: str, block_tokens: int) -> list[TokenRun]:
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
    num_blocks = -(-length // block_tokens)
    if len(line.hash_ids) > num_blocks:
        raise ValueError(
            f"has {len(line.hash_ids)} hash_ids where {length} tokens fill {num_blocks} blocks of {block_tokens}"
        )
    runs = [TokenRun(("mooncake", block), 0, block_tokens) for block in line.hash_ids]
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


def _request(line: _Line, number: int, arrival_ms: float, block_tokens: int) -> WorkloadRequest:
    """The request of a line; ValueError when its parts contradict each other."""
    request_id = line.request_id or f"line-{number}"
    parts = _parts(line, _text(line, request_id, block_tokens))
    return WorkloadRequest(
        request_id, arrival_ms, parts, line.output_length, line.session_id, line.priority, line.slo_class
    )


def _timed_rows(path: Path, *, strict: bool) -> Iterator[TimedRow[_Line]]:
    decoder = msgspec.json.Decoder(_StrictLine if strict else _Line)
    for number, text in read_lines(path):
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not text.strip():
                continue
            rule = f"is not a record of the trace ({error})"
            remedy = "the line may be cut in half; complete or drop it"
            raise line_error(path, number, text.decode(errors="replace").rstrip(), rule, remedy) from error
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
    block_tokens: int = MOONCAKE_BLOCK_TOKENS,
    reorder_ms: float = 0.0,
) -> Iterator[WorkloadRequest]:
    """The requests of a JSON-lines trace, lazily.

    Args:
        path: Plain or gzip.
        cut: The part that is taken; all when None.
        strict: Refuse keys that are not of the format (ours); foreign traces may have more keys.
        block_tokens: Tokens behind one of `hash_ids`.
        reorder_ms: How far a line may lie behind its predecessors.

    Raises:
        InputError: The file or a line of it cannot be used; raised when that line is reached.
    """
    rows = in_order(_timed_rows(path, strict=strict), path, reorder_ms)
    for arrival_ms, number, line in (cut or TraceCut()).apply(rows, path, 0.0):
        try:
            yield _request(line, number, arrival_ms, block_tokens)
        except ValueError as error:
            raise line_error(path, number, "", str(error), "correct or drop the line") from error


def write_jsonl(requests: Iterable[WorkloadRequest], path: Path) -> int:
    """Write requests in epdsim's own form; `read_jsonl` gives the same requests back.

    The file appears when it is complete; gzip when its name ends in `.gz`.

    Returns:
        How many were written.

    Raises:
        InputError: Reading would not give a request back (a content that JSON has no form for, an empty run, time going back), or
            the file cannot be written; there is no file then.
    """
    latest_ms, count = 0.0, 0
    with whole_file(path, f"workload file {str(path)!r}") as file:
        for request in requests:
            if request.arrival_ms < latest_ms:
                rule = f"arrives at {request.arrival_ms:g} ms, before its predecessor"
                raise InputError(f"request {request.request_id!r}", rule, "write requests by time")
            file.write(_encode(request) + b"\n")
            latest_ms, count = request.arrival_ms, count + 1
    return count


_DECODER = msgspec.json.Decoder(_StrictLine)


def _encode(request: WorkloadRequest) -> bytes:
    """The shortest line that reads back as the request: text in blocks, as new text, or run by run."""
    text = [part for part in request.parts if isinstance(part, TokenRun)]
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
    if ids := _block_ids(text):
        forms.insert(0, {"hash_ids": ids})
    reason = "would read back as a different one"
    for form in forms:
        try:
            encoded = msgspec.json.encode(msgspec.structs.replace(line, **form))
            back = _DECODER.decode(encoded)
            _check(back)
            if _request(back, 0, back.timestamp, MOONCAKE_BLOCK_TOKENS) == request:
                return encoded
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            reason = str(error)
    raise InputError(f"request {request.request_id!r}", reason, "such a request cannot be written as JSON")


def _block_ids(text: Sequence[TokenRun]) -> list[int]:
    """Ids of the Mooncake blocks that the text begins with, as far as it consists of them."""
    ids: list[int] = []
    for run in text:
        match run:
            case TokenRun(content=("mooncake", int() as block), start=start):
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


class _JsonlTrace(TraceSpec):
    block_tokens: PositiveInt = MOONCAKE_BLOCK_TOKENS


class MooncakeSpec(_JsonlTrace):
    """A Mooncake trace; further keys of a line are ignored.

    Attributes:
        block_tokens: Tokens behind one of `hash_ids`.
    """

    kind: Literal["mooncake-jsonl"] = "mooncake-jsonl"

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file."""
        return read_jsonl(path, self.cut, strict=False, block_tokens=self.block_tokens, reorder_ms=self.reorder_ms)

    def statements(self) -> list[str]:
        """What reading the file assumes."""
        return [f"equal hash_ids are equal blocks of {self.block_tokens} tokens, tokens without an id are new"]


class JsonlSpec(_JsonlTrace):
    """A trace in epdsim's own form; a key that is not of the form is refused."""

    kind: Literal["jsonl"] = "jsonl"

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file."""
        return read_jsonl(path, self.cut, strict=True, block_tokens=self.block_tokens, reorder_ms=self.reorder_ms)
