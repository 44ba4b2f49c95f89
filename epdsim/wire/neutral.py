"""Items in the neutral JSON form of recordings: tensors as dtype, shape and hexadecimal bytes, kinds by name.

{"image_grid_thw": {"data": {"dtype": "int64", "shape": [3], "hex": "..."}, "field": {"kind": "batched", "keep_on_cpu": true}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, cast

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
from epdsim.wire.codec import kind_arguments, raw_bytes


def item_from_neutral(value: object, place: str = "item") -> MediaItem:
    """The item of its neutral form.

    Raises:
        InputError: With the place and the field.
    """
    if not isinstance(value, Mapping):
        raise InputError(place, f"an item is an object of fields, this is {value!r}")
    return MediaItem(
        {str(name): _field(one, f"{place}.{name}") for name, one in cast("Mapping[str, object]", value).items()}
    )


def item_to_neutral(item: MediaItem) -> dict[str, Any]:
    """The way back; every tensor must have bytes behind it."""
    fields: dict[str, Any] = {}
    for name, one in item.fields.items():
        kind, arguments = kind_arguments(one.kind)
        listed = {key: _nest(value, list) for key, value in arguments.items()}
        fields[name] = {"data": _data_to_neutral(one.data), "field": {"kind": kind, **listed}}
    return fields


def _data_to_neutral(data: FieldData) -> Any:
    if isinstance(data, TensorHandle):
        return {"dtype": data.dtype, "shape": list(data.shape), "hex": raw_bytes(data).hex()}
    return [_data_to_neutral(part) for part in data] if isinstance(data, tuple) else data


def _mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one, which lacks whatever is asked of it."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _field(value: object, place: str) -> Field:
    parts = _mapping(value)
    if set(parts) != {"data", "field"}:
        raise InputError(place, 'a field has "data" and "field"')
    return Field(_data(parts["data"], f"{place}.data"), _kind(parts["field"], f"{place}.field"))


def _data(value: object, place: str) -> FieldData:
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, list):
        return tuple(_data(part, f"{place}[{i}]") for i, part in enumerate(cast("list[object]", value)))
    parts = _mapping(value)
    dtype, text = parts.get("dtype"), parts.get("hex")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES or not isinstance(text, str):
        raise InputError(f"{place} = {value!r}", "a tensor has a known dtype, a shape and hex")
    shape = _shape(parts.get("shape"), f"{place}.shape")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise InputError(f"{place}.hex", f"not hexadecimal: {error}") from None
    if len(data) != ITEM_BYTES[dtype] * prod(shape):
        raise InputError(f"{place}.hex has {len(data)} bytes", f"{dtype} of shape {list(shape)} takes another number")
    return TensorHandle(dtype, shape, data)


def _shape(value: object, place: str) -> tuple[int, ...]:
    sizes = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(n, int) and n >= 0 for n in sizes):
        raise InputError(f"{place} = {value!r}", "a list of whole numbers, none of them negative")
    return tuple(cast("list[int]", sizes))


def _kind(value: object, place: str) -> FieldKind:
    parts = _mapping(value)
    keep, size, dim, slices = (parts.get(key) for key in ("keep_on_cpu", "batch_size", "dim", "slices"))
    if isinstance(keep, bool):
        if parts.get("kind") == "batched":
            return BatchedKind(keep)
        if parts.get("kind") == "shared" and isinstance(size, int):
            return SharedKind(size, keep)
        if parts.get("kind") == "flat" and isinstance(dim, int) and isinstance(slices, list):
            return FlatKind(cast("tuple[object, ...]", _nest(cast("object", slices), tuple)), dim, keep)
    raise InputError(f"{place} = {value!r}", "a kind is batched, flat or shared, with its arguments")


def _nest(value: object, sequence: type[list[object]] | type[tuple[object, ...]]) -> object:
    """Nested sequences as lists or as tuples."""
    if isinstance(value, (list, tuple)):
        return sequence(_nest(one, sequence) for one in cast("list[object]", value))
    return value
