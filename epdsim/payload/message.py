"""A step's plan as one message: a preamble, a header, and every unique tensor once.

    preamble (16 bytes) | header (msgpack) | pad | tensor 0 | pad | tensor 1 | ...

The header is the plan with an index in place of each item's fields, and in these an index in place of each tensor; tensors start at
multiples of 16 bytes, enough for every dtype. What occurs several times is written once, as pickle's memo does with one object
(vLLM PR 52041: the cost is per unique tensor). How large a message is follows from handles alone.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Sequence
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
from epdsim.core.plan import CachedRequestData, NewRequestData, StepPlan
from epdsim.cost.broadcast import BroadcastLoad
from epdsim.payload.tensors import tensor_bytes, tensor_over

ALIGN_BYTES = 16
"""Start of every tensor within a message: the largest element, complex128, needs it."""

PREAMBLE = struct.Struct("<B3xIQ")
"""Overflow flag (set by the ring, 0 in a message), bytes of the header, bytes of the whole message."""

_TENSOR, _NESTED = 0, 1
"""First element of a field's packed data when it is no number."""


@dataclass(frozen=True, slots=True)
class MessageSize:
    """What a plan weighs as a message.

    Attributes:
        header_bytes: Everything that is not tensor data: preamble, msgpack header, alignment.
        payload_bytes: Data of the unique tensors.
        num_unique_tensors: Tensors written.
        num_tensors: Tensors referred to, repeats included.
        num_items: Placeholders of the admissions, with or without data, repeats included.
    """

    header_bytes: int
    payload_bytes: int
    num_unique_tensors: int
    num_tensors: int
    num_items: int

    @property
    def total_bytes(self) -> int:
        """Length of the message."""
        return self.header_bytes + self.payload_bytes

    def load(self, readers: int) -> BroadcastLoad:
        """The same as input of the cost model, for a number of tensor-parallel ranks."""
        return BroadcastLoad(
            header_bytes=self.header_bytes,
            payload_bytes=self.payload_bytes,
            num_unique_tensors=self.num_unique_tensors,
            num_items=self.num_items,
            readers=readers,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """An encoded plan.

    Attributes:
        frames: Buffers that make up the message when written one after the other; tensor data are views, not copies.
        size: Equal to `message_size` of the plan.
        tensors: The unique tensors in the order of the message.
    """

    frames: tuple[memoryview, ...]
    size: MessageSize
    tensors: tuple[TensorHandle, ...]

    def write_to(self, buffer: memoryview) -> None:
        """Copy the message into a writable buffer of exactly its size: how its data come in band."""
        end = 0
        for frame in self.frames:
            buffer[end : end + frame.nbytes] = frame
            end += frame.nbytes


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A received plan.

    Attributes:
        plan: Equal to the plan that was sent; its handles hold torch tensors over the received memory.
        tensors: The unique tensors in the order of the message.
    """

    plan: StepPlan
    tensors: tuple[TensorHandle, ...]


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


class _NewSpec(msgspec.Struct, array_like=True, frozen=True):
    request_id: str
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    features: tuple[_FeatureSpec, ...]
    num_prompt_tokens: int


class _Header(msgspec.Struct, array_like=True, frozen=True):
    step: int
    num_scheduled_tokens: dict[str, int]
    scheduled_encoder_inputs: dict[str, tuple[int, ...]]
    new: tuple[_NewSpec, ...]
    cached: tuple[tuple[str, int, tuple[int, ...] | None, bool], ...]
    preempted: tuple[str, ...]
    finished: tuple[str, ...]
    free_encoder_mm_hashes: tuple[str, ...]
    ec_loads: tuple[str, ...]
    items: tuple[tuple[_FieldSpec, ...], ...]
    tensors: tuple[_TensorSpec, ...]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)


@dataclass(slots=True)
class _Tables:
    """The unique tensors and items met so far, and how often any tensor was referred to."""

    tensors: list[TensorHandle] = field(default_factory=list[TensorHandle])
    items: dict[tuple[_FieldSpec, ...], int] = field(default_factory=dict[tuple[_FieldSpec, ...], int])
    num_references: int = 0
    _indices: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def tensor_index(self, handle: TensorHandle) -> int:
        """Its place in the message. Equal content is known by digest, else by the identity of what the bytes come from."""
        anchor = handle if handle.source is None else handle.source
        key = (handle.digest or id(anchor), handle.dtype, handle.shape)
        self.num_references += 1
        index = self._indices.setdefault(key, len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(handle)
        return index

    def item_index(self, item: MediaItem) -> int:
        """Its place in the header; items of equal fields share one."""
        packed = tuple(
            _FieldSpec(name, _pack_kind(one.kind), _pack_data(one.data, self)) for name, one in item.fields.items()
        )
        return self.items.setdefault(packed, len(self.items))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


def _pack_data(data: FieldData, tables: _Tables) -> object:
    if isinstance(data, TensorHandle):
        return (_TENSOR, tables.tensor_index(data))
    if isinstance(data, tuple):
        return (_NESTED, *(_pack_data(part, tables) for part in data))
    return data


def _unpack_data(packed: Any, tensors: Sequence[TensorHandle]) -> FieldData:
    match packed:
        case int() | float():
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


def _pack_feature(feature: MediaFeature, tables: _Tables) -> _FeatureSpec:
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


def _pack_new(new: NewRequestData, tables: _Tables) -> _NewSpec:
    features = tuple(_pack_feature(feature, tables) for feature in new.mm_features)
    return _NewSpec(new.request_id, new.num_computed_tokens, tuple(new.block_ids), features, new.num_prompt_tokens)


def _unpack_new(packed: _NewSpec, items: Sequence[MediaItem]) -> NewRequestData:
    features = tuple(_unpack_feature(feature, items) for feature in packed.features)
    return NewRequestData(
        packed.request_id, packed.num_computed_tokens, packed.block_ids, features, packed.num_prompt_tokens
    )


def _pack_cached(cached: CachedRequestData) -> tuple[str, int, tuple[int, ...] | None, bool]:
    blocks = None if cached.new_block_ids is None else tuple(cached.new_block_ids)
    return cached.request_id, cached.num_computed_tokens, blocks, cached.resumed


def _pack_plan(plan: StepPlan) -> tuple[bytes, _Tables]:
    tables = _Tables()
    new = tuple(_pack_new(one, tables) for one in plan.new)
    header = _Header(
        step=plan.step,
        num_scheduled_tokens=dict(plan.num_scheduled_tokens),
        scheduled_encoder_inputs={name: tuple(inputs) for name, inputs in plan.scheduled_encoder_inputs.items()},
        new=new,
        cached=tuple(_pack_cached(one) for one in plan.cached),
        preempted=tuple(plan.preempted),
        finished=tuple(plan.finished),
        free_encoder_mm_hashes=tuple(plan.free_encoder_mm_hashes),
        ec_loads=tuple(plan.ec_loads),
        items=tuple(tables.items),
        tensors=tuple(_TensorSpec(one.dtype, one.shape, one.digest) for one in tables.tensors),
    )
    return _ENCODER.encode(header), tables


def _unpack_plan(header: _Header, tensors: Sequence[TensorHandle]) -> StepPlan:
    items = [_unpack_item(one, tensors) for one in header.items]
    return StepPlan(
        step=header.step,
        num_scheduled_tokens=header.num_scheduled_tokens,
        scheduled_encoder_inputs=header.scheduled_encoder_inputs,
        new=tuple(_unpack_new(one, items) for one in header.new),
        cached=tuple(CachedRequestData(*one) for one in header.cached),
        preempted=header.preempted,
        finished=header.finished,
        free_encoder_mm_hashes=header.free_encoder_mm_hashes,
        ec_loads=header.ec_loads,
    )


def _offsets(packed_bytes: int, sizes: Sequence[int]) -> Iterator[int]:
    """Where each tensor starts, then where the message ends."""
    end = PREAMBLE.size + packed_bytes
    for size in sizes:
        start = _aligned(end)
        yield start
        end = start + size
    yield end


def _size(plan: StepPlan, packed_bytes: int, tables: _Tables) -> MessageSize:
    sizes = [handle.nbytes for handle in tables.tensors]
    *_, total_bytes = _offsets(packed_bytes, sizes)
    return MessageSize(
        header_bytes=total_bytes - sum(sizes),
        payload_bytes=sum(sizes),
        num_unique_tensors=len(sizes),
        num_tensors=tables.num_references,
        num_items=sum(len(new.mm_features) for new in plan.new),
    )


def message_size(plan: StepPlan) -> MessageSize:
    """The exact size of a plan's message, from handles alone: no tensor needs to exist.

    Tensors are taken as one when their handles have equal dtype, shape and non-empty digest, or, without a digest, when they
    share the object that their bytes come from (the handle itself when it has no source).
    """
    packed, tables = _pack_plan(plan)
    return _size(plan, len(packed), tables)


def encode(plan: StepPlan) -> Message:
    """A plan as frames ready to be written, tensor data as views of the plan's own memory.

    Raises:
        TypeError: A handle has nothing behind it, or something other than its dtype and shape say.
    """
    packed, tables = _pack_plan(plan)
    size = _size(plan, len(packed), tables)
    head = bytearray(PREAMBLE.pack(0, len(packed), size.total_bytes)) + packed
    frames = [memoryview(head)]
    starts = _offsets(len(packed), [handle.nbytes for handle in tables.tensors])
    end = len(head)
    for handle, start in zip(tables.tensors, starts, strict=False):
        frames += [memoryview(bytes(start - end)), tensor_bytes(handle)]
        end = start + handle.nbytes
    return Message(tuple(frame for frame in frames if frame.nbytes), size, tuple(tables.tensors))


def decode(buffer: bytearray | memoryview) -> DecodedMessage:
    """A plan out of the memory that holds its message, without a copy of tensor data.

    Args:
        buffer: Writable, its start aligned to 16 bytes. The tensors keep it alive; whoever reuses the memory ends them.

    Raises:
        ValueError: The buffer is not one whole message.
    """
    memory = memoryview(buffer)
    if memory.nbytes < PREAMBLE.size:
        raise ValueError(f"{memory.nbytes} bytes are no message: the preamble alone has {PREAMBLE.size}")
    _, packed_bytes, total_bytes = PREAMBLE.unpack_from(memory)
    if memory.nbytes != total_bytes:
        raise ValueError(f"{memory.nbytes} bytes are no message: its preamble says {total_bytes}")
    try:
        header = _DECODER.decode(memory[PREAMBLE.size : PREAMBLE.size + packed_bytes])
    except msgspec.DecodeError as error:
        raise ValueError(f"no message: its header is broken ({error})") from error
    specs = header.tensors
    sizes = [TensorHandle(spec.dtype, spec.shape).nbytes for spec in specs]
    starts = _offsets(packed_bytes, sizes)
    tensors = tuple(
        tensor_over(spec.dtype, spec.shape, memory[start : start + size], spec.digest)
        for spec, size, start in zip(specs, sizes, starts, strict=False)
    )
    return DecodedMessage(_unpack_plan(header, tensors), tensors)
