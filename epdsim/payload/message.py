"""A step's plan as one message: a preamble, a header, and every unique tensor once.

    preamble (16 bytes) | header (msgpack) | pad | tensor 0 | pad | tensor 1 | ...

The header is the plan with an index in place of each item's fields, and in these an index in place of each tensor; tensors start at
multiples of 16 bytes, enough for every dtype. What occurs several times is written once, as pickle's memo does with one object
(vLLM PR 52041: the cost is per unique tensor). How large a message is follows from handles alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from epdsim.core.items import TensorHandle
from epdsim.core.plan import StepPlan
from epdsim.core.records import record
from epdsim.cost.broadcast import BroadcastLoad
from epdsim.payload.header import unpack_header, unpack_plan
from epdsim.payload.packing import PlanTables, pack_plan, pack_text
from epdsim.payload.tensors import tensor_bytes, tensor_over

ALIGN_BYTES = 16
"""Start of every tensor within a message: the largest element, complex128, needs it."""

PREAMBLE = struct.Struct("<B3xIQ")
"""Overflow flag (set by the ring, 0 in a message), bytes of the header, bytes of the whole message."""


@record
class MessageSize:
    """What a plan weighs as a message.

    Attributes:
        header_bytes: Everything that is not tensor data: preamble, msgpack header, alignment.
        payload_bytes: Data of the unique tensors.
        num_unique_tensors: Tensors written.
        num_tensors: Tensors referred to, repeats included.
        num_items: Placeholders of the admissions and of late or repeated fields, with or without data, repeats included.
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


@record
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


@record
class DecodedMessage:
    """A received plan.

    Attributes:
        plan: Equal to the plan that was sent; its handles hold torch tensors over the received memory.
        tensors: The unique tensors in the order of the message.
    """

    plan: StepPlan
    tensors: tuple[TensorHandle, ...]


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


def _offsets(packed_bytes: int, sizes: Sequence[int]) -> Iterator[int]:
    """Where each tensor starts, then where the message ends."""
    end = PREAMBLE.size + packed_bytes
    for size in sizes:
        start = _aligned(end)
        yield start
        end = start + size
    yield end


def _size(plan: StepPlan, packed_bytes: int, tables: PlanTables) -> MessageSize:
    sizes = [handle.nbytes for handle in tables.tensors]
    *_, total_bytes = _offsets(packed_bytes, sizes)
    return MessageSize(
        header_bytes=total_bytes - sum(sizes),
        payload_bytes=sum(sizes),
        num_unique_tensors=len(sizes),
        num_tensors=tables.num_references,
        num_items=sum(len(new.mm_features) for new in plan.new) + sum(len(row.mm_updates) for row in plan.cached),
    )


def message_size(plan: StepPlan) -> MessageSize:
    """The exact size of a plan's message, from handles alone: no tensor needs to exist.

    Tensors are taken as one when their handles have equal dtype, shape and non-empty digest, or, without a digest, when they
    share the object that their bytes come from (the handle itself when it has no source).
    """
    text = pack_text(plan)
    if text is not None:
        return MessageSize(PREAMBLE.size + len(text), 0, 0, 0, 0)
    packed, tables = pack_plan(plan)
    return _size(plan, len(packed), tables)


def encode(plan: StepPlan) -> Message:
    """A plan as frames ready to be written, tensor data as views of the plan's own memory.

    Raises:
        TypeError: A handle has nothing behind it, or something other than its dtype and shape say.
    """
    packed, tables = pack_plan(plan)
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
    header = unpack_header(memory[PREAMBLE.size : PREAMBLE.size + packed_bytes])
    specs = header.tensors
    sizes = [TensorHandle(spec.dtype, spec.shape).nbytes for spec in specs]
    starts = _offsets(packed_bytes, sizes)
    tensors = tuple(
        tensor_over(spec.dtype, spec.shape, memory[start : start + size], spec.digest)
        for spec, size, start in zip(specs, sizes, starts, strict=False)
    )
    return DecodedMessage(unpack_plan(header, tensors), tensors)
