"""The first line of a trace in epdsim's own form: version, whose blocks its text consists of, and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from epdsim.workload.trace_files import line_error, read_lines


class Blocks(NamedTuple):
    """Whose blocks of text a trace numbers, and how many tokens each has."""

    name: str
    num_tokens: int


MOONCAKE_BLOCKS = Blocks("mooncake", 512)

FORMAT = "epdsim-trace"
VERSION = 1
"""Of the format of the lines; a reader refuses any other, as it would not know what it leaves out."""


class TraceHeader(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The first line of a trace in epdsim's own form.

    Attributes:
        format: Always `epdsim-trace`.
        version: Of the format.
        blocks: Whose blocks `hash_ids` are: equal ids of one name are equal text.
        block_tokens: Tokens of one of them.
        source: What the trace was made from.
        assumptions: What the source did not say and was added.
        concurrency: Requests in flight of a closed loop; 0 for arrivals by the clock.
        keeps_arrivals: Whether the closed loop sends none before its time.
    """

    format: Literal["epdsim-trace"]
    version: int
    blocks: str = MOONCAKE_BLOCKS.name
    block_tokens: int = MOONCAKE_BLOCKS.num_tokens
    source: str = ""
    assumptions: str = ""
    concurrency: int = 0
    keeps_arrivals: bool = False

    @property
    def numbering(self) -> Blocks:
        """What `hash_ids` of the lines stand for."""
        return Blocks(self.blocks, self.block_tokens)


def read_header(path: Path) -> TraceHeader:
    """The header of a trace, that of plain Mooncake lines where it has none.

    Raises:
        InputError: The file cannot be read, or has another version.
    """
    for number, text in read_lines(path):
        return header_in(text, path, number) or TraceHeader(format=FORMAT, version=VERSION)
    return TraceHeader(format=FORMAT, version=VERSION)


def header_in(text: bytes, path: Path, number: int) -> TraceHeader | None:
    """The header, where a line is one.

    Raises:
        InputError: It is one of another version, or damaged.
    """
    if number != 1 or f'"{FORMAT}"'.encode() not in text:
        return None
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            rule = f"is version {version} of the format, and this epdsim reads version {VERSION}"
            raise line_error(path, 1, "", rule, "convert the trace again, or use the epdsim that wrote it")
        header = msgspec.json.decode(text, type=TraceHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        shown = text.decode(errors="replace").rstrip()
        raise line_error(path, 1, shown, f"is no header of a trace ({error})", "convert the trace again") from error
    if header.block_tokens < 1 or header.concurrency < 0:
        rule = f"has block_tokens {header.block_tokens} and concurrency {header.concurrency}"
        raise line_error(path, 1, "", rule, "convert the trace again")
    return header


class _Version(msgspec.Struct):
    version: int
