"""Qwen-Bailian's usage traces (Alibaba Cloud, ATC'25, arXiv 2506.02634; Apache-2.0): JSON lines, seconds, hashed blocks of text.

One object a line (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): `chat_id`, `parent_chat_id` (-1 begins a conversation),
`timestamp` in seconds, `input_length`, `output_length`, `type`, `turn`, and `hash_ids`, one per block of 16 input tokens. A turn's
input has the whole history in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from epdsim.workload.jsonl import block_runs
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.specs import PositiveInt
from epdsim.workload.trace_files import TimedRow, in_order, json_rows, line_error
from epdsim.workload.trace_header import Blocks
from epdsim.workload.traces import TraceSpec

BAILIAN_BLOCKS = Blocks("bailian", 16)


class _Line(msgspec.Struct):
    chat_id: int
    parent_chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    type: str = ""
    turn: int = 1


def _timed_rows(path: Path, types: Collection[str] | None) -> Iterator[TimedRow[tuple[_Line, int]]]:
    """Lines and the chat that each one's conversation began with."""
    first_of: dict[int, int] = {}
    for number, line in json_rows(path, msgspec.json.Decoder(_Line)):
        if not 0 <= line.timestamp < math.inf:
            raise line_error(path, number, "", f"has timestamp {line.timestamp:g}", "time starts at 0")
        if line.input_length < 1 or line.output_length < 1:
            rule = f"has input_length {line.input_length} and output_length {line.output_length}"
            raise line_error(path, number, "", rule, "both are at least 1; correct or drop the line")
        begun = line.chat_id if line.parent_chat_id < 0 else line.parent_chat_id
        first_of[line.chat_id] = first_of.get(line.parent_chat_id, begun)
        if types is None or line.type in types:
            yield line.timestamp * 1e3, number, (line, first_of[line.chat_id])


class BailianSpec(TraceSpec):
    """A Qwen-Bailian trace.

    Attributes:
        block_tokens: Tokens behind one of `hash_ids`; the files' names say it.
        types: Only requests of these types (`text`, `search`, `image`, `file`, ...); all when absent.
    """

    kind: Literal["bailian-jsonl"] = "bailian-jsonl"
    block_tokens: PositiveInt = BAILIAN_BLOCKS.num_tokens
    types: tuple[str, ...] | None = None

    @property
    def blocks(self) -> Blocks:
        """What the text consists of."""
        return BAILIAN_BLOCKS._replace(num_tokens=self.block_tokens)

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file; a conversation is named after its first chat."""
        rows = in_order(_timed_rows(path, self.types), path, self.reorder_ms)
        for arrival_ms, number, (line, first) in self.cut.apply(rows, path, 0.0):
            request_id = f"chat-{line.chat_id}"
            try:
                text = block_runs(line.hash_ids, line.input_length, request_id, self.blocks)
            except ValueError as error:
                raise line_error(path, number, "", str(error), "correct or drop the line") from error
            yield WorkloadRequest(request_id, arrival_ms, tuple(text), line.output_length, f"chat-{first}")

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - one signature for all traces
        """What reading the file assumes."""
        told = f"equal hash_ids are equal blocks of {self.block_tokens} tokens, tokens without an id are new"
        only = [f"only requests of type {', '.join(self.types)}"] if self.types else []
        return [told, "pictures and files of a request are not told apart from its text", *only]
