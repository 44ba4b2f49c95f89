"""Packing: from a plan to its header (`epdsim.payload.header`), and the tensors that its message must carry."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from epdsim.core.items import (
    BatchedKind,
    FieldData,
    FieldKind,
    FlatKind,
    MediaFeature,
    MediaItem,
    SharedKind,
    TensorHandle,
)
from epdsim.core.plan import CachedRequestData, NewRequestData, StepPlan
from epdsim.payload.header import NESTED, TENSOR, FeatureSpec, FieldSpec, TensorSpec

_ENCODER = msgspec.msgpack.Encoder()


class PlanTables:
    """The unique tensors and items met so far, and how often any tensor was referred to."""

    __slots__ = ("_item_indices", "_tensor_indices", "items", "num_references", "tensors")

    def __init__(self) -> None:
        self.tensors: list[TensorHandle] = []
        self.items: list[tuple[FieldSpec, ...]] = []
        self.num_references = 0
        self._tensor_indices: dict[Hashable, int] = {}
        self._item_indices: dict[bytes, int] = {}

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
            FieldSpec(name, _pack_kind(one.kind), _pack_data(one.data, self)) for name, one in item.fields.items()
        )
        index = self._item_indices.setdefault(_ENCODER.encode(packed), len(self.items))
        if index == len(self.items):
            self.items.append(packed)
        return index


def _pack_data(data: FieldData, tables: PlanTables) -> object:
    if isinstance(data, TensorHandle):
        return (TENSOR, tables.tensor_index(data))
    if isinstance(data, tuple):
        return (NESTED, *(_pack_data(part, tables) for part in data))
    return data


def _pack_kind(kind: FieldKind) -> tuple[Any, ...]:
    match kind:
        case BatchedKind(keep_on_cpu=cpu):
            return ("batched", cpu)
        case FlatKind(slices=slices, dim=dim, keep_on_cpu=cpu):
            return ("flat", cpu, slices, dim)
        case SharedKind(batch_size=batch_size, keep_on_cpu=cpu):
            return ("shared", cpu, batch_size)


def _pack_feature(feature: MediaFeature, tables: PlanTables) -> FeatureSpec:
    place = feature.position
    item = None if feature.data is None else tables.item_index(feature.data)
    return FeatureSpec(
        feature.modality, feature.identifier, place.offset, place.length, place.is_embed, feature.mm_hash, item
    )


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


def _pack_cached(cached: CachedRequestData, tables: PlanTables) -> tuple[Any, ...]:
    """What decodes into a `_CachedSpec`."""
    if not (
        cached.mm_updates or cached.cross_block_ids
    ):  # both are rare, and hundreds of requests of a plan may decode
        return cached[:4]
    updates = [(index, _pack_feature(feature, tables)) for index, feature in cached.mm_updates.items()]
    return (*cached[:4], *_while_used(updates, cached.cross_block_ids))


def pack_plan(plan: StepPlan) -> tuple[bytes, PlanTables]:
    """The header of a plan, and the tensors that its message must carry in their order."""
    tables = PlanTables()
    new = [_pack_new(one, tables) for one in plan.new]
    cached = [_pack_cached(one, tables) for one in plan.cached]
    tensors = [TensorSpec(one.dtype, one.shape, one.digest) for one in tables.tensors]
    return _packed(plan, new, cached, tables.items, tensors), tables


def pack_text(plan: StepPlan) -> bytes | None:
    """The header of a plan that names no item, in a fraction of the time; None of one that does."""
    new: list[tuple[Any, ...]] = []
    for one in plan.new:
        if one.mm_features or one.num_known_features or one.cross_block_ids:
            return None
        new.append(
            (one.request_id, one.num_computed_tokens, one.block_ids, (), one.num_prompt_tokens, one.num_cached_tokens)
        )
    cached: list[tuple[Any, ...]] = []
    for request_id, num_computed, block_ids, resumed, updates, cross_block_ids in plan.cached:
        if updates or cross_block_ids:
            return None
        cached.append((request_id, num_computed, block_ids, resumed))
    return _packed(plan, new, cached, (), ())


def _packed(
    plan: StepPlan,
    new: Sequence[tuple[Any, ...]],
    cached: Sequence[tuple[Any, ...]],
    items: Sequence[tuple[FieldSpec, ...]],
    tensors: Sequence[TensorSpec],
) -> bytes:
    """What decodes into a `PackedPlan`; no struct is made, since a simulation only asks for the length."""
    header = (
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
        items,
        tensors,
    )
    last = plan.ec_saves, plan.num_scheduled_spec_tokens, plan.kv_loads, plan.kv_sends
    return _ENCODER.encode((*header, *_while_used(*last)) if any(last) else header)


def _while_used(*fields: Any) -> tuple[Any, ...]:
    """Fields up to the last one that says something: what a plan does not use costs it no byte."""
    used = len(fields)
    while used and not fields[used - 1]:
        used -= 1
    return fields[:used]
