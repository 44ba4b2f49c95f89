"""The header of a message: a plan in msgpack, with an index in place of each item's fields and of each tensor.

What occurs several times is described once, as pickle's memo does with one object: tensors are told apart by content digest or,
without one, by the identity of what their bytes come from; items by their fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from epdsim.core.items import (
    BatchedKind,
    Field,
    FieldData,
    FieldKind,
    FlatKind,
    MediaFeature,
    MediaItem,
    PlaceholderRange,
    SharedKind,
    TensorHandle,
)
from epdsim.core.plan import CachedRequestData, KvLoad, NewRequestData, StepPlan

TENSOR, NESTED = 0, 1
"""First element of a field's packed data when it is no number."""


class TensorSpec(msgspec.Struct, array_like=True, frozen=True):
    """A tensor of the message."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


class FieldSpec(msgspec.Struct, array_like=True, frozen=True):
    """A field of an item, its tensors by index."""

    name: str
    kind: tuple[Any, ...]
    data: Any


class FeatureSpec(msgspec.Struct, array_like=True, frozen=True):
    """An item in its place, its fields by index."""

    modality: str
    identifier: str
    offset: int
    length: int
    is_embed: bytes | None
    mm_hash: str
    item: int | None


class _NewSpec(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    request_id: str
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    features: tuple[FeatureSpec, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_known_features: int = 0
    cross_block_ids: tuple[int, ...] = ()


class _CachedSpec(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    num_computed_tokens: int
    block_ids: tuple[int, ...] | None
    resumed: bool
    updates: tuple[tuple[int, FeatureSpec], ...] = ()
    cross_block_ids: tuple[int, ...] = ()


_LoadSpec = tuple[str, tuple[int, ...], int, int, bool]


class PackedPlan(msgspec.Struct, array_like=True, frozen=True):
    """A plan as it stands in the header."""

    step: int
    num_scheduled_tokens: dict[str, int]
    scheduled_encoder_inputs: dict[str, tuple[int, ...]]
    new: tuple[_NewSpec, ...]
    cached: tuple[_CachedSpec, ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    free_encoder_mm_hashes: tuple[str, ...]
    ec_loads: tuple[str, ...]
    samples: tuple[str, ...]
    items: tuple[tuple[FieldSpec, ...], ...]
    tensors: tuple[TensorSpec, ...]
    ec_saves: tuple[str, ...] = ()
    num_scheduled_spec_tokens: dict[str, int] = {}
    kv_loads: tuple[_LoadSpec, ...] = ()
    kv_sends: tuple[str, ...] = ()


_DECODER = msgspec.msgpack.Decoder(PackedPlan)


def _unpack_data(packed: Any, tensors: Sequence[TensorHandle]) -> FieldData:
    match packed:
        case int() | float() | None:
            return packed
        case [0, index]:
            return tensors[index]
        case [1, *parts]:
            return tuple(_unpack_data(part, tensors) for part in parts)
        case _:
            raise ValueError(f"no field data: {packed!r}")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _unpack_kind(packed: tuple[Any, ...]) -> FieldKind:
    match packed:
        case ("batched", cpu):
            return BatchedKind(cpu)
        case ("flat", cpu, slices, dim):
            return FlatKind(_tuples(slices), dim, cpu)
        case ("shared", cpu, batch_size):
            return SharedKind(batch_size, cpu)
        case _:
            raise ValueError(f"no field kind: {packed!r}")


def _unpack_feature(packed: FeatureSpec, items: Sequence[MediaItem]) -> MediaFeature:
    place = PlaceholderRange(packed.offset, packed.length, packed.is_embed)
    item = None if packed.item is None else items[packed.item]
    return MediaFeature(packed.modality, packed.identifier, place, item, packed.mm_hash)


def _unpack_item(packed: Sequence[FieldSpec], tensors: Sequence[TensorHandle]) -> MediaItem:
    return MediaItem({one.name: Field(_unpack_data(one.data, tensors), _unpack_kind(one.kind)) for one in packed})


def _unpack_new(packed: _NewSpec, items: Sequence[MediaItem]) -> NewRequestData:
    features = tuple(_unpack_feature(feature, items) for feature in packed.features)
    return NewRequestData(
        packed.request_id,
        packed.num_computed_tokens,
        packed.block_ids,
        features,
        packed.num_prompt_tokens,
        packed.num_cached_tokens,
        packed.num_known_features,
        packed.cross_block_ids,
    )


def _unpack_cached(packed: _CachedSpec, items: Sequence[MediaItem]) -> CachedRequestData:
    updates = {index: _unpack_feature(feature, items) for index, feature in packed.updates}
    start = (packed.request_id, packed.num_computed_tokens, packed.block_ids, packed.resumed)
    return CachedRequestData(*start, updates, packed.cross_block_ids)


def unpack_header(packed: memoryview) -> PackedPlan:
    """The header as received, before its tensors exist.

    Raises:
        ValueError: The bytes are no header.
    """
    try:
        return _DECODER.decode(packed)
    except msgspec.DecodeError as error:
        raise ValueError(f"no message: its header is broken ({error})") from error


def unpack_plan(header: PackedPlan, tensors: Sequence[TensorHandle]) -> StepPlan:
    """The plan that a header describes, over the tensors that came with it."""
    items = [_unpack_item(one, tensors) for one in header.items]
    return StepPlan(
        step=header.step,
        num_scheduled_tokens=header.num_scheduled_tokens,
        scheduled_encoder_inputs=header.scheduled_encoder_inputs,
        new=tuple(_unpack_new(one, items) for one in header.new),
        cached=tuple(_unpack_cached(one, items) for one in header.cached),
        preempted=header.preempted,
        finished=header.finished,
        free_encoder_mm_hashes=header.free_encoder_mm_hashes,
        ec_loads=header.ec_loads,
        ec_saves=header.ec_saves,
        samples=header.samples,
        num_scheduled_spec_tokens=header.num_scheduled_spec_tokens,
        kv_loads=tuple(KvLoad(*one) for one in header.kv_loads),
        kv_sends=header.kv_sends,
    )
