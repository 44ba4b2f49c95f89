"""The media hash: what an item is known by before anybody has looked at it, in caches, block keys and on the wire.

Two items may share a hash only if they are the same to the model: bytes, dtype, shape, image mode, palette, and the options with
which they are processed (HASH-INJ). The hash is made of three decisions, each a rule: what stands for the item, how that becomes
one stream of bytes, and how much of the stream's digest is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TypeAlias

from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect, Rule

HashPart: TypeAlias = "bytes | str | bool | int | float | Sequence[HashPart] | Mapping[str, HashPart] | None"
"""What a hash is made of: leaves, and containers of them."""


@record
class RawItem:
    """One item as a front end gets it.

    Attributes:
        data: Its bytes, row by row.
        shape: Rows, columns and the like; of an image rows and columns.
        dtype: Of an array, for example `"uint8"`.
        mode: Of an image, for example `"RGB"`; empty for an array.
        palette: Colours of an image of mode `"P"`.
        given_id: What the client calls it (vLLM's `multi_modal_uuids`); None when it has no name of the client's.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str = "uint8"
    mode: str = ""
    palette: bytes = b""
    given_id: str | None = None


def whole_content(item: RawItem) -> Mapping[str, HashPart]:
    """Everything that the model sees of an item."""
    return {
        "data": item.data,
        "shape": item.shape,
        "dtype": item.dtype,
        "mode": item.mode,
        "palette": item.palette,
    }


def bytes_alone(item: RawItem) -> Mapping[str, HashPart]:
    """Its bytes and nothing of how they are laid out (dynamo PR 8341)."""
    return {"data": item.data}


def beside_content(given_id: str, content: Mapping[str, HashPart]) -> HashPart:
    """The client's name is a part of the hash, and the content is another."""
    return {"id": given_id, **content}


def name_alone(given_id: str, _content: Mapping[str, HashPart]) -> HashPart:
    """The client's name stands for the item, whatever it holds (vLLM issue 55547)."""
    return given_id


def framed(part: HashPart) -> bytes:
    """Every leaf with its type and length, every container with its kind and size: different parts, different bytes."""
    if isinstance(part, Mapping):
        return _leaf(b"m", b"".join(framed(name) + framed(value) for name, value in sorted(part.items())))
    if isinstance(part, Sequence) and not isinstance(part, str | bytes):
        return _leaf(b"l", b"".join(map(framed, part)))
    content = part if isinstance(part, bytes) else str(part).encode()
    return _leaf(type(part).__name__.encode(), content)


def _leaf(kind: bytes, content: bytes) -> bytes:
    return kind + b":" + len(content).to_bytes(8, "little") + content


def without_types(part: HashPart) -> bytes:
    """Leaves with their length and not their type, so that a number and a text of the same bytes are one: vLLM from 0.31 on."""
    if part is None:
        return b"n"
    if isinstance(part, Mapping):
        return _leaf(b"m", b"".join(_leaf(b"", name.encode()) + without_types(value) for name, value in part.items()))
    if isinstance(part, Sequence) and not isinstance(part, str | bytes):
        return _leaf(b"l", b"".join(map(without_types, part)))
    return _leaf(b"v", _plain_bytes(part))


def joined(part: HashPart, path: str = "") -> bytes:
    """Paths and values one after the other, with nothing between them: vLLM up to 0.30 (PR 54283)."""
    if part is None:
        return path.encode()
    if isinstance(part, Mapping):
        return b"".join(joined(value, f"{path}.{name}" if path else name) for name, value in part.items())
    if isinstance(part, Sequence) and not isinstance(part, str | bytes):
        return b"".join(joined(value, f"{path}.{place}") for place, value in enumerate(part))
    return path.encode() + _plain_bytes(part)


def _plain_bytes(part: bytes | str | float) -> bytes:
    """A leaf's own bytes; of numbers as an array of one holds them."""
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bool):
        return bytes([part])
    return struct.pack("<q" if isinstance(part, int) else "<d", part)


def whole_digest(digest: str) -> str:
    """All of it."""
    return digest


def last_digits(digest: str) -> str:
    """Its last 16 bits, as LMCache made of identifiers (PR 4783)."""
    return digest[-4:]


CONTENT = Rule(
    "media_hash.content",
    "A media hash covers bytes, shape, dtype, mode and palette of an item.",
    source="dynamo PR 8341, vLLM PR 24969",
    ideal=whole_content,
)
GIVEN_ID = Rule(
    "media_hash.given_id",
    "What a client calls an item is hashed beside its content and does not stand for it.",
    source="vLLM issues 55546, 55547 and 55549",
    ideal=beside_content,
)
STREAM: Rule[Callable[[HashPart], bytes]] = Rule(
    "media_hash.stream",
    "What is hashed can be told from its bytes: leaves have types and lengths, containers kinds and sizes.",
    source="vLLM PR 54283",
    ideal=framed,
)
DIGEST = Rule(
    "media_hash.digest",
    "The whole digest is kept.",
    source="sglang PR 36595, LMCache PR 4783",
    ideal=whole_digest,
)


def media_hash(item: RawItem, options: Mapping[str, HashPart], dialect: Dialect = IDEAL) -> str:
    """The hash of an item.

    Args:
        item: As the client sent it.
        options: With which it is decoded and processed.
        dialect: Rules `media_hash.*`.

    Returns:
        Hexadecimal digits; with a client's name that stands alone and no options, that name.
    """
    stands: HashPart = dialect[CONTENT](item)
    if item.given_id is not None:
        stands = dialect[GIVEN_ID](item.given_id, dialect[CONTENT](item))
        if stands == item.given_id and not options:
            return item.given_id
    parts: Mapping[str, HashPart] = {"item": stands, "options": options} if options else {"item": stands}
    return dialect[DIGEST](sha256(dialect[STREAM](parts)).hexdigest())
