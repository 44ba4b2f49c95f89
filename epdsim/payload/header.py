"""The header of a message: a plan in msgpack, with an index in place of each item's fields and of each tensor.

What occurs several times is described once, as pickle's memo does with one object: tensors are told apart by content digest or,
without one, by the identity of what their bytes come from; items by their fields.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
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

_TENSOR, _NESTED = 0, 1
"""First element of a field's packed data when it is no number."""


class _TensorSpec(msgspec.Struct, array_like=True, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    digest: str


class _FieldSpec(msgspec.Struct, array_like=True, frozen=True):
    name: str
    kind: tuple[Any, ...]
    data: Any


class _FeatureSpec(msgspec.Struct, array_like=True, frozen=True):
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
    features: tuple[_FeatureSpec, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_known_features: int = 0
    cross_block_ids: tuple[int, ...] = ()


class _CachedSpec(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    num_computed_tokens: int
    block_ids: tuple[int, ...] | None
    resumed: bool
    updates: tuple[tuple[int, _FeatureSpec], ...] = ()
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
    items: tuple[tuple[_FieldSpec, ...], ...]
    tensors: tuple[_TensorSpec, ...]
    ec_saves: tuple[str, ...] = ()
    num_scheduled_spec_tokens: dict[str, int] = {}
    kv_loads: tuple[_LoadSpec, ...] = ()
    kv_sends: tuple[str, ...] = ()


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PackedPlan)


@dataclass(slots=True)
class PlanTables:
    """The unique tensors and items met so far, and how often any tensor was referred to."""

    tensors: list[TensorHandle] = field(default_factory=list[TensorHandle])
    items: list[tuple[_FieldSpec, ...]] = field(default_factory=list[tuple[_FieldSpec, ...]])
    num_references: int = 0
    _tensor_indices: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _item_indices: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def tensor_index(self, handle: TensorHandle) -> int:
        """Its place in the message. Equal content is known by digest, else by the identity of what the bytes come from."""
        anchor = handle if handle.source is None else handle.source
        key = (handle.digest or id(anchor), handle.dtype, handle.shape)
        self.num_references += 1
        index = self._tensor_indices.setdefault(key, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(handle)
        return index

    def item_index(self, item: MediaItem) -> int:
        """Its place in the header; items of equal fields share one."""
        packed = tuple(
            _FieldSpec(name, _pack_kind(one.kind), _pack_data(one.data, self)) for name, one in item.fields.items()
        )
        index = self._item_indices.setdefault(_ENCODER.encode(packed), len(self.items))
        if index == len(self.items):
            self.items.append(packed)
        return index


def _pack_data(data: FieldData, tables: PlanTables) -> object:
    if isinstance(data, TensorHandle):
        return (_TENSOR, tables.tensor_index(data))
    if isinstance(data, tuple):
        return (_NESTED, *(_pack_data(part, tables) for part in data))
    return data


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


def _pack_kind(kind: FieldKind) -> tuple[Any, ...]:
    match kind:
        case BatchedKind(keep_on_cpu=cpu):
            return ("batched", cpu)
        case FlatKind(slices=slices, dim=dim, keep_on_cpu=cpu):
            return ("flat", cpu, slices, dim)
        case SharedKind(batch_size=batch_size, keep_on_cpu=cpu):
            return ("shared", cpu, batch_size)


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


def _pack_feature(feature: MediaFeature, tables: PlanTables) -> _FeatureSpec:
    place = feature.position
    item = None if feature.data is None else tables.item_index(feature.data)
    return _FeatureSpec(
        feature.modality, feature.identifier, place.offset, place.length, place.is_embed, feature.mm_hash, item
    )


def _unpack_feature(packed: _FeatureSpec, items: Sequence[MediaItem]) -> MediaFeature:
    place = PlaceholderRange(packed.offset, packed.length, packed.is_embed)
    item = None if packed.item is None else items[packed.item]
    return MediaFeature(packed.modality, packed.identifier, place, item, packed.mm_hash)


def _unpack_item(packed: Sequence[_FieldSpec], tensors: Sequence[TensorHandle]) -> MediaItem:
    return MediaItem({one.name: Field(_unpack_data(one.data, tensors), _unpack_kind(one.kind)) for one in packed})


def _pack_new(new: NewRequestData, tables: PlanTables) -> tuple[Any, ...]:
    """What decodes into a `_NewSpec`."""
    features = [_pack_feature(feature, tables) for feature in new.mm_features]
    row = (
        new.request_id,
        new.num_computed_tokens,
        new.block_ids,
        features,
        new.num_prompt_tokens,
        new.num_cached_tokens,
    )
    return (*row, *_while_used(new.num_known_features, new.cross_block_ids))


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


def _pack_cached(cached: CachedRequestData, tables: PlanTables) -> tuple[Any, ...]:
    """What decodes into a `_CachedSpec`."""
    if not (
        cached.mm_updates or cached.cross_block_ids
    ):  # both are rare, and hundreds of requests of a plan may decode
        return cached[:4]
    updates = [(index, _pack_feature(feature, tables)) for index, feature in cached.mm_updates.items()]
    return (*cached[:4], *_while_used(updates, cached.cross_block_ids))


def _unpack_cached(packed: _CachedSpec, items: Sequence[MediaItem]) -> CachedRequestData:
    updates = {index: _unpack_feature(feature, items) for index, feature in packed.updates}
    start = (packed.request_id, packed.num_computed_tokens, packed.block_ids, packed.resumed)
    return CachedRequestData(*start, updates, packed.cross_block_ids)


def pack_plan(plan: StepPlan) -> tuple[bytes, PlanTables]:
    """The header of a plan, and the tensors that its message must carry in their order."""
    tables = PlanTables()
    new = [_pack_new(one, tables) for one in plan.new]
    cached = [_pack_cached(one, tables) for one in plan.cached]
    header = (  # what decodes into a `PackedPlan`; no struct is made, since a simulation only asks for the length
        plan.step,
        plan.num_scheduled_tokens,
        plan.scheduled_encoder_inputs,
        new,
        cached,
        plan.preempted,
        plan.finished,
        plan.free_encoder_mm_hashes,
        plan.ec_loads,
        plan.samples,
        tables.items,
        [_TensorSpec(one.dtype, one.shape, one.digest) for one in tables.tensors],
        *_while_used(plan.ec_saves, plan.num_scheduled_spec_tokens, plan.kv_loads, plan.kv_sends),
    )
    return _ENCODER.encode(header), tables


def _while_used(*fields: Any) -> tuple[Any, ...]:
    """Fields up to the last one that says something: what a plan does not use costs it no byte."""
    used = len(fields)
    while used and not fields[used - 1]:
        used -= 1
    return fields[:used]


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
