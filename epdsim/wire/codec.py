"""Items as blobs: vLLM's msgpack form of a `MultiModalKwargsItem` in base64, to the byte.

A blob is one map `{field: {"data": D, "field": [kind, arguments]}}`. A tensor is `[dtype, shape, ext(3, little-endian bytes)]`;
lists nest, plain numbers and null pass through. Small heads are joined with views of the data, so that each tensor is copied once,
and the size of a blob follows from the same heads without any data at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, cast

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, FieldData, FieldKind, FlatKind, MediaItem, SharedKind, TensorHandle

RAW_EXTENSION = 3
"""Extension code of a tensor's bytes."""

_FIX_EXT = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}
_encode = msgspec.msgpack.Encoder().encode


def encode_item(item: MediaItem, place: str = "item") -> bytes:
    """The msgpack message of an item.

    Args:
        item: Every tensor must have bytes behind it: raw bytes, an array, or a torch tensor in host memory.
        place: For error messages, as in `features.kwargs_data.image[0]`.

    Raises:
        InputError: A tensor has no bytes, or not as many as its dtype and shape say; a number does not fit in 64 bits.
    """
    return b"".join(
        raw_bytes(piece, f"{place}: field {name!r}") if isinstance(piece, TensorHandle) else piece
        for name, piece in _pieces(item, place)
    )


def encode_blob(item: MediaItem, place: str = "item") -> str:
    """The base64 blob of an item; see `encode_item`."""
    return cast("str", msgspec.to_builtins(encode_item(item, place)))


def item_size(item: MediaItem) -> int:
    """Bytes of the msgpack message, from dtypes and shapes alone: no tensor needs bytes behind it."""
    size = len(_item_head(item))
    for name, one in item.fields.items():
        data = one.data
        if isinstance(data, TensorHandle):
            size += _tensor_field_size(name, data.dtype, data.shape, one.kind)
        else:
            size += _size(_field_pieces(name, one, "item"))
    return size


@lru_cache(maxsize=1 << 14)
def _tensor_field_size(name: str, dtype: str, shape: tuple[int, ...], kind: FieldKind) -> int:
    return _size(_field_pieces(name, Field(TensorHandle(dtype, shape), kind), "item"))


def _size(pieces: Iterable[bytes | TensorHandle]) -> int:
    return sum([piece.nbytes if isinstance(piece, TensorHandle) else len(piece) for piece in pieces])


def blob_size(item: MediaItem) -> int:
    """Characters of the base64 blob, from dtypes and shapes alone."""
    return 4 * -(-item_size(item) // 3)


def raw_bytes(handle: TensorHandle, place: str = "tensor") -> memoryview:
    """The bytes behind a handle, without copying where they lie in one piece.

    Raises:
        InputError: There are none, or not as many as dtype and shape say.
    """
    source: Any = handle.source
    if source is None:
        raise InputError(
            f"{place} is size-only", "there are no bytes to encode", "use `blob_size` where only sizes matter"
        )
    if not isinstance(source, (bytes, bytearray, memoryview)) and hasattr(source, "data_ptr"):
        from epdsim.wire.tensors import tensor_bytes  # noqa: PLC0415 - torch loads slowly, and only here is it needed

        view = tensor_bytes(source)
    else:
        view = memoryview(cast("bytes", source))
    view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
    if view.nbytes != handle.nbytes:
        raise InputError(
            f"{place} has {view.nbytes} bytes", f"{handle.dtype} of shape {list(handle.shape)} takes {handle.nbytes}"
        )
    return view


def _pieces(item: MediaItem, place: str) -> Iterator[tuple[str, bytes | TensorHandle]]:
    """The message in order, each piece with its field's name: heads as bytes, the data of tensors as their handles."""
    yield "", _item_head(item)
    for name, one in item.fields.items():
        for piece in _field_pieces(name, one, place):
            yield name, piece


def _item_head(item: MediaItem) -> bytes:
    return _head(len(item.fields), 0x80, b"\xde", b"\xdf")


def _field_pieces(name: str, one: Field, place: str) -> Iterator[bytes | TensorHandle]:
    yield _encode(name) + b"\x82\xa4data"
    yield from _data_pieces(one.data, f"{place}: field {name!r}")
    yield b"\xa5field" + _encode(kind_arguments(one.kind))


def _data_pieces(data: FieldData, place: str) -> Iterator[bytes | TensorHandle]:
    if isinstance(data, TensorHandle):
        yield b"\x93" + _encode(data.dtype) + _encode(data.shape) + _ext_head(data.nbytes, place)
        yield data
    elif isinstance(data, tuple):
        yield _head(len(data), 0x90, b"\xdc", b"\xdd")
        for part in data:
            yield from _data_pieces(part, place)
    else:
        try:
            yield _encode(data)
        except OverflowError:
            raise InputError(f"{place} = {data!r}", "the number does not fit in 64 bits") from None


def kind_arguments(kind: FieldKind) -> tuple[str, dict[str, object]]:
    """The name of a kind and its arguments, in the order of the wire."""
    match kind:
        case BatchedKind():
            return "batched", {"keep_on_cpu": kind.keep_on_cpu}
        case FlatKind():
            return "flat", {"keep_on_cpu": kind.keep_on_cpu, "slices": kind.slices, "dim": kind.dim}
        case SharedKind():
            return "shared", {"keep_on_cpu": kind.keep_on_cpu, "batch_size": kind.batch_size}


def _head(count: int, fix: int, two: bytes, four: bytes) -> bytes:
    """The head of a map or an array."""
    if count < 16:
        return bytes((fix | count,))
    return two + count.to_bytes(2, "big") if count < 1 << 16 else four + count.to_bytes(4, "big")


def _ext_head(nbytes: int, place: str) -> bytes:
    if nbytes in _FIX_EXT:
        head = _FIX_EXT[nbytes]
    elif nbytes < 1 << 8:
        head = b"\xc7" + nbytes.to_bytes(1, "big")
    elif nbytes < 1 << 16:
        head = b"\xc8" + nbytes.to_bytes(2, "big")
    elif nbytes < 1 << 32:
        head = b"\xc9" + nbytes.to_bytes(4, "big")
    else:
        raise InputError(f"{place} has {nbytes} bytes", "msgpack carries at most 4 GiB in one tensor", "split the item")
    return head + bytes((RAW_EXTENSION,))
