"""Blobs back to items, refusing whatever could hurt: pickles, broken, oversized and ill-formed messages.

Decoding hands out views into the received message: no tensor is copied. Extensions 1 and 2 are pickles and are refused unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.items import (
    ITEM_BYTES,
    BatchedKind,
    Field,
    FieldData,
    FieldKind,
    FlatKind,
    MediaItem,
    SharedKind,
    TensorHandle,
)
from epdsim.core.records import record
from epdsim.wire.codec import RAW_EXTENSION

_PICKLES = (1, 2)


@record
class Limits:
    """What a decoder takes before it refuses.

    Attributes:
        blob_bytes: Longest msgpack message.
        fields: Most fields in one item.
        depth: Deepest nesting of lists in one field.
    """

    blob_bytes: int = 1 << 30
    fields: int = 256
    depth: int = 16


LIMITS = Limits()


class PickleRefusedError(InputError):
    """A blob holds a pickle: loading one runs whatever its author wrote."""


@record
class _ForeignExtension:
    """An extension that is not raw data; kept by its code only."""

    code: int


def _on_extension(code: int, data: memoryview) -> memoryview | _ForeignExtension:
    return data if code == RAW_EXTENSION else _ForeignExtension(code)


_decode = msgspec.msgpack.Decoder(ext_hook=_on_extension).decode


def decode_blob(blob: str | bytes, place: str = "blob", limits: Limits = LIMITS) -> MediaItem:
    """The item in a base64 blob.

    Args:
        blob: Base64 with padding and nothing else.
        place: For error messages, as in `features.kwargs_data.image[0]`.
        limits: What to refuse.

    Returns:
        The item; its tensors are views into the decoded message.

    Raises:
        InputError: With the place, and the field where one is meant.
    """
    if len(blob) > 4 * -(-limits.blob_bytes // 3):
        raise InputError(f"{place} has {len(blob)} characters", f"the limit is {limits.blob_bytes} bytes of message")
    try:
        message = msgspec.convert(blob if isinstance(blob, str) else blob.decode("ascii"), bytes)
    except (msgspec.ValidationError, UnicodeError):
        raise InputError(f"{place} = {_short(blob)}", "not base64", "send the blob as render gave it") from None
    return decode_item(message, place, limits)


def decode_item(message: bytes | memoryview, place: str = "item", limits: Limits = LIMITS) -> MediaItem:
    """The item in a msgpack message; see `decode_blob`."""
    if len(message) > limits.blob_bytes:
        raise InputError(f"{place} has {len(message)} bytes", f"the limit is {limits.blob_bytes}")
    try:
        decoded: object = _decode(message)
    except RecursionError:
        raise InputError(f"{place}", "nested without end") from None
    except (msgspec.DecodeError, TypeError) as error:
        raise InputError(f"{place} ({len(message)} bytes)", f"not a msgpack message: {error}") from None
    if not isinstance(decoded, dict):
        raise InputError(f"{place}", f"a blob is one map of fields, this is {_named(decoded)}")
    fields = cast("dict[object, object]", decoded)
    if len(fields) > limits.fields:
        raise InputError(f"{place} has {len(fields)} fields", f"the limit is {limits.fields}")
    return MediaItem(
        {_name(key, place): _field(value, f"{place}: field {key!r}", limits.depth) for key, value in fields.items()}
    )


def _short(blob: str | bytes) -> str:
    return repr(blob if len(blob) <= 24 else blob[:20]) + ("" if len(blob) <= 24 else f"... ({len(blob)} characters)")


def _named(value: object) -> str:
    """What a decoded value is, for messages."""
    if isinstance(value, _ForeignExtension):
        return f"a pickle (extension {value.code})" if value.code in _PICKLES else f"the unknown extension {value.code}"
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (type(None), "null"),
        ((bool, int, float), "a number"),
        (str, "text"),
        ((bytes, memoryview), "bytes"),
        (list, "a list"),
        (dict, "a map"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def _misfit(place: str, rule: str, value: object) -> InputError:
    """The error for something that stands where it must not."""
    if isinstance(value, _ForeignExtension) and value.code in _PICKLES:
        return PickleRefusedError(place, f"{rule}, this is {_named(value)}", "pickles are never loaded")
    return InputError(place, f"{rule}, this is {_named(value)}")


def _name(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise InputError(f"{place} has a field named {key!r}", f"a field's name is text, this is {_named(key)}")
    return key


def _field(value: object, place: str, depth: int) -> Field:
    if not isinstance(value, dict):
        raise InputError(place, f'a field is a map of "data" and "field", this is {_named(value)}')
    parts = cast("dict[object, object]", value)
    if parts.keys() != {"data", "field"}:
        raise InputError(f"{place} has the keys {list(parts)}", 'a field has "data" and "field"')
    return Field(_data(parts["data"], place, depth), _kind(parts["field"], place))


def _data(value: object, place: str, depth: int) -> FieldData:
    if value is None:
        return None
    return _nested(value, place, depth)


def _nested(value: object, place: str, depth: int) -> FieldData:
    if isinstance(value, (int, float)):
        return value
    if not isinstance(value, list):
        raise _misfit(place, "its data are tensors, numbers and lists of them", value)
    parts = cast("list[object]", value)
    if parts and isinstance(parts[0], str):
        return _tensor(parts, place)
    if depth == 0:
        raise InputError(place, "its lists are nested deeper than the limit")
    return tuple(_nested(part, place, depth - 1) for part in parts)


def _tensor(parts: list[object], place: str) -> TensorHandle:
    if len(parts) != 3:
        raise InputError(place, f"a tensor is dtype, shape and data, this has {len(parts)} parts")
    dtype, shape, data = parts
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise InputError(f"{place} has the dtype {dtype!r}", f"the dtypes are {', '.join(ITEM_BYTES)}")
    if not isinstance(shape, list) or any(
        not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in cast("list[object]", shape)
    ):
        raise InputError(f"{place} has the shape {shape!r}", "a shape is a list of sizes, none of them negative")
    sizes = tuple(cast("list[int]", shape))
    if not isinstance(data, memoryview):
        if isinstance(data, int):
            raise InputError(f"{place} refers to buffer {data}", "a blob has its data inside")
        raise _misfit(place, f"the data of a tensor is the extension {RAW_EXTENSION}", data)
    if data.nbytes != ITEM_BYTES[dtype] * prod(sizes):
        raise InputError(
            f"{place} has {data.nbytes} bytes",
            f"{dtype} of shape {list(sizes)} takes {ITEM_BYTES[dtype] * prod(sizes)}",
        )
    return TensorHandle(dtype, sizes, cast("memoryview", data))


_ARGUMENTS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "batched": (frozenset(), frozenset({"keep_on_cpu"})),
    "flat": (frozenset({"slices"}), frozenset({"keep_on_cpu", "slices", "dim"})),
    "shared": (frozenset({"batch_size"}), frozenset({"keep_on_cpu", "batch_size"})),
}
"""Per kind, the arguments that must be there and those that may."""


def _kind(value: object, place: str) -> FieldKind:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    if len(parts) != 2 or not isinstance(parts[0], str) or not isinstance(parts[1], dict):
        raise InputError(f"{place} has no kind", '"field" is a list of the kind and a map of its arguments')
    kind, arguments = parts[0], cast("dict[str, object]", parts[1])
    if kind not in _ARGUMENTS:
        raise InputError(f"{place} has the kind {kind!r}", f"the kinds are {', '.join(_ARGUMENTS)}")
    needed, known = _ARGUMENTS[kind]
    if not needed <= arguments.keys() <= known:
        raise InputError(f"{place} has the {kind} arguments {list(arguments)}", f"they are {', '.join(sorted(known))}")
    keep_on_cpu = arguments.get("keep_on_cpu", False)
    if not isinstance(keep_on_cpu, bool):
        raise InputError(f"{place} has keep_on_cpu = {keep_on_cpu!r}", "true or false")
    if kind == "batched":
        return BatchedKind(keep_on_cpu)
    if kind == "shared":
        return SharedKind(_whole(arguments["batch_size"], f"{place} has batch_size"), keep_on_cpu)
    slices = _slices(arguments["slices"], place)
    if not isinstance(slices, tuple):
        raise InputError(f"{place} has slices = {slices!r}", "a list of [start, stop, step]")
    return FlatKind(
        cast("tuple[object, ...]", slices), _whole(arguments.get("dim", 0), f"{place} has dim"), keep_on_cpu
    )


def _whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{what} = {value!r}", "a whole number")
    return value


def _slices(value: object, place: str, depth: int = 3) -> object:
    if not isinstance(value, list):
        raise InputError(
            f"{place} has a slice bound {value!r}", "a slice is [start, stop, step] of whole numbers or null"
        )
    parts = cast("list[object]", value)
    if parts and not isinstance(parts[0], list):
        if len(parts) != 3 or any(
            one is not None and (not isinstance(one, int) or isinstance(one, bool)) for one in parts
        ):
            raise InputError(
                f"{place} has the slice {parts!r}", "a slice is [start, stop, step] of whole numbers or null"
            )
        return tuple(parts)
    if depth == 0:
        raise InputError(place, "its slices are nested too deep")
    return tuple(_slices(one, place, depth - 1) for one in parts)
