"""A message is exactly as large as its handles say, and what comes out of it is what went in."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from epdsim.core.items import (
    ITEM_BYTES,
    BatchedKind,
    Field,
    FlatKind,
    MediaFeature,
    MediaItem,
    PlaceholderRange,
    SharedKind,
    TensorHandle,
)
from epdsim.core.plan import CachedRequestData, KvLoad, NewRequestData, StepPlan
from epdsim.core.strip import strip_covered
from epdsim.payload import decode, encode, message_size, tensor_digests
from epdsim.payload.message import ALIGN_BYTES, PREAMBLE

GEMMA_4_BYTES = 15_482_880  # vLLM PR 52041: (1, 5040, 768) float32


def received(message):
    buffer = bytearray(message.size.total_bytes)
    message.write_to(memoryview(buffer))
    return buffer


def everything_set():
    """A plan in which no field has its default and every form of field data occurs."""
    pixels, grid = torch.arange(24, dtype=torch.bfloat16).reshape(2, 12), bytes(range(24))
    item = MediaItem(
        {
            "pixel_values": Field(TensorHandle("bfloat16", (2, 12), pixels, "digest"), FlatKind(((0, 2, None),), 1)),
            "grid": Field(TensorHandle("int64", (1, 3), grid), BatchedKind(keep_on_cpu=True)),
            "nested": Field((TensorHandle("uint8", (24,), grid), (1, 2.5, None)), SharedKind(3, keep_on_cpu=True)),
            "number": Field(7, BatchedKind()),
            "known_elsewhere": Field(None, BatchedKind()),
        }
    )
    features = (
        MediaFeature("image", "adapter:h0", PlaceholderRange(3, 4, b"\x01\x00\x01\x01"), item, "h0"),
        MediaFeature("video", "h1", PlaceholderRange(9, 2), None, "h1"),
    )
    new = NewRequestData("new", 5, (4, 9), features, 40, 3, 2, (6,))
    late = {1: replace(features[1], data=item.subset(["number"]))}
    cached = (CachedRequestData("a", 8, (7,), True, late, (3, 1)), CachedRequestData("b", 9, None))
    return StepPlan(
        step=12,
        num_scheduled_tokens={"b": 1, "a": 2, "new": 35},
        scheduled_encoder_inputs={"new": (0, 1)},
        new=(new,),
        cached=cached,
        preempted=("c",),
        finished=("d", "e"),
        free_encoder_mm_hashes=("h9",),
        ec_loads=("h1",),
        ec_saves=("h2",),
        samples=("b", "a"),
        num_scheduled_spec_tokens={"a": 1},
        kv_loads=(KvLoad("new", (4, 9), 5, 21, True),),
        kv_sends=("d",),
    )


def test_a_plan_with_every_field_set_comes_back_equal():
    plan = everything_set()
    empty = (StepPlan(0, {}), NewRequestData("", 0, (), (), 0), CachedRequestData("", 0, None))
    for record, required in zip((plan, plan.new[0], plan.cached[0]), empty, strict=True):
        names = record._fields if isinstance(record, tuple) else [one.name for one in fields(record)]
        unset = [name for name in names if getattr(record, name) == getattr(required, name)]
        assert unset == [], "the test must cover fields that plans gained"
    message = encode(plan)
    assert message.size.num_items == 3, "two of the admission and one late"
    decoded = decode(received(message))
    assert decoded.plan == plan
    assert list(decoded.plan.num_scheduled_tokens) == ["b", "a", "new"], "scheduling order is part of a plan"
    assert list(decoded.plan.new[0].mm_features[0].data.fields) == list(plan.new[0].mm_features[0].data.fields)
    assert tensor_digests(decoded.tensors) == tensor_digests(message.tensors)
    assert (
        decoded.tensors[0].source.tolist()
        == plan.new[0].mm_features[0].data.fields["pixel_values"].data.source.tolist()
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("shape", [(), (3,), (0, 5), (2, 1, 3)])
def test_every_dtype_and_shape_survives_to_the_byte(plans, dtype, shape):
    tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    raw = torch.arange(tensor.nbytes, dtype=torch.int64).remainder(2 if dtype == "bool" else 251).to(torch.uint8)
    tensor = raw.view(getattr(torch, dtype)).reshape(shape) if tensor.nbytes else tensor
    plan = plans.plan([plans.feature(0, TensorHandle(dtype, shape, tensor))])
    message = encode(plan)
    (back,) = decode(received(message)).tensors
    assert (back.source.dtype, tuple(back.source.shape)) == (tensor.dtype, shape)
    assert back.source.reshape(-1).view(torch.uint8).tolist() == raw.tolist()
    assert message.size == message_size(plan)


def test_tensors_start_aligned_and_are_views_of_what_was_sent_and_of_what_was_received(plans):
    handles = [plans.handle(num_bytes, num_bytes) for num_bytes in (4, 20, 4096, 8)]
    message = encode(plans.plan([plans.feature(i, one) for i, one in enumerate(handles)]))
    for handle in handles:
        handle.source[0] = 42.0
    buffer = received(message)
    decoded = decode(buffer)
    assert [one.source[0].item() for one in decoded.tensors] == [42.0] * 4, "encoding must not copy"
    base = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
    starts = [one.source.data_ptr() - base for one in decoded.tensors]
    assert [start % ALIGN_BYTES for start in starts] == [0] * 4
    assert all(0 < start < message.size.total_bytes for start in starts), "decoding must not copy"


def test_a_tensor_that_is_not_contiguous_arrives_in_row_major_order(plans):
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).t()
    handle = TensorHandle("float32", (4, 3), tensor)
    (back,) = decode(received(encode(plans.plan([plans.feature(0, handle)])))).tensors
    assert torch.equal(back.source, tensor)


def test_sizes_follow_the_published_image_without_any_tensor(plans):
    def sized(digests):
        handles = [TensorHandle("float32", (1, 5040, 768), digest=one) for one in digests]
        return message_size(plans.plan([plans.feature(i, one) for i, one in enumerate(handles)]))

    distinct, repeated = sized([f"d{i}" for i in range(26)]), sized(["d0"] * 26)
    assert (distinct.payload_bytes, distinct.num_unique_tensors, distinct.num_items) == (26 * GEMMA_4_BYTES, 26, 26)
    assert (repeated.payload_bytes, repeated.num_unique_tensors, repeated.num_items) == (GEMMA_4_BYTES, 1, 26)
    assert repeated.num_tensors == distinct.num_tensors == 26
    assert distinct.header_bytes < 10_000


@pytest.mark.parametrize(
    ("second", "num_unique"),
    [
        pytest.param(lambda one: one, 1, id="the same handle"),
        pytest.param(replace, 1, id="another handle over the same tensor"),
        pytest.param(lambda one: replace(one, source=one.source.clone()), 2, id="equal content, nobody knows"),
        pytest.param(lambda one: replace(one, shape=(2, 4), source=one.source.view(2, 4)), 2, id="another shape"),
    ],
)
def test_without_digests_one_tensor_is_one_object(plans, second, num_unique):
    first = plans.handle(32)
    plan = plans.plan([plans.feature(0, first), plans.feature(1, second(first))])
    message = encode(plan)
    assert message.size.num_unique_tensors == num_unique
    assert message.size.payload_bytes == 32 * num_unique
    assert decode(received(message)).plan == plan


def test_with_digests_equal_content_is_sent_once_and_repeats_stay_one_object(plans):
    first, again = plans.handle(64, digest="x"), plans.handle(64, digest="x")
    other = plans.handle(64, seed=1, digest="y")
    plan = plans.plan([plans.feature(0, first), plans.feature(1, again), plans.feature(2, other)])
    message = encode(plan)
    assert (message.size.num_unique_tensors, message.size.num_tensors, message.size.payload_bytes) == (2, 3, 128)
    decoded = decode(received(message))
    assert message_size(decoded.plan) == message.size, "a rank that sends on finds the same repeats"


def test_zero_and_minus_zero_are_two_items(plans):
    items = [MediaItem({"x": Field(value, BatchedKind())}) for value in (0.0, -0.0, 0)]
    features = [replace(plans.feature(i), data=item) for i, item in enumerate(items)]
    decoded = decode(received(encode(plans.plan(features)))).plan
    assert [repr(one.data.fields["x"].data) for one in decoded.new[0].mm_features] == ["0.0", "-0.0", "0"]


def test_without_a_prefix_hit_the_strip_changes_no_byte_and_with_one_it_removes_the_payload(plans):
    features = tuple(plans.feature(i, plans.handle(4096, i)) for i in range(3))

    def sent(num_computed_tokens, *, strip):
        shown = strip_covered(features, num_computed_tokens) if strip else features
        return bytes(received(encode(plans.plan(shown, num_computed_tokens))))

    assert sent(0, strip=True) == sent(0, strip=False)
    assert sent(15, strip=True) == sent(15, strip=False), "the first item ends at 16: not covered yet"
    stripped = decode(bytearray(sent(16, strip=True)))
    assert [one.data is None for one in stripped.plan.new[0].mm_features] == [True, False, False]
    assert len(sent(16, strip=False)) - len(sent(16, strip=True)) >= 4096


@pytest.mark.parametrize(
    "handle",
    [
        TensorHandle("float32", (4,)),
        TensorHandle("float32", (4,), source=b"too short"),
        TensorHandle("float32", (4,), source=torch.zeros(2, 2)),
        TensorHandle("float32", (4,), source=torch.zeros(4, dtype=torch.int32)),
        TensorHandle("float32", (4,), source=torch.zeros(4, device="meta")),
    ],
    ids=["nothing", "bytes of another size", "another shape", "another dtype", "no memory"],
)
def test_a_handle_whose_source_is_not_what_it_says_is_refused(plans, handle):
    plan = plans.plan([plans.feature(0, handle)])
    assert message_size(plan).payload_bytes == 16
    with pytest.raises(TypeError, match="float32"):
        encode(plan)


def test_what_is_no_whole_message_is_refused(plans):
    whole = received(encode(plans.plan([plans.feature(0, plans.handle(64))])))
    broken = bytearray(whole)
    broken[PREAMBLE.size] = 0xC1  # a byte that msgpack never uses
    for buffer in (bytearray(), whole[: PREAMBLE.size - 1], whole[:-1], whole + b"\0", broken):
        with pytest.raises(ValueError, match="no message"):
            decode(buffer)
