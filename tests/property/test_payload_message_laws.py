"""Messages of drawn plans: exact sizes from handles alone, and equal plans on the other side."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

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
from epdsim.payload import decode, encode, message_size, tensor_digests

names = st.text(max_size=6)
counts = st.integers(0, 2**40)
ids = st.lists(names, max_size=3).map(tuple)
blocks = st.lists(counts, max_size=5).map(tuple)
slice_bounds = st.tuples(st.none() | counts, st.none() | counts, st.none() | counts)
kinds = (
    st.builds(BatchedKind, st.booleans())
    | st.builds(SharedKind, counts, st.booleans())
    | st.builds(FlatKind, st.lists(slice_bounds | st.tuples(slice_bounds, slice_bounds), max_size=2).map(tuple))
)


@st.composite
def handles(draw):
    """A handle over raw bytes; with a digest, the digest decides the content."""
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    digest = draw(st.sampled_from(["", "one", "two"]))
    sized = TensorHandle(dtype, shape, digest=digest)
    fill = {"one": 1, "two": 0}.get(digest, draw(st.integers(0, 1)))
    return replace(sized, source=bytearray([fill]) * sized.nbytes)


numbers = counts | st.floats(allow_nan=False) | st.none()
data = st.recursive(handles() | numbers, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=4)
items = st.dictionaries(names, st.builds(Field, data, kinds), max_size=3).map(MediaItem)


@st.composite
def features(draw):
    length = draw(st.integers(1, 5))
    mask = draw(st.none() | st.binary(min_size=length, max_size=length))
    place = PlaceholderRange(draw(counts), length, mask)
    return MediaFeature(draw(names), draw(names), place, draw(st.none() | items), draw(names))


@st.composite
def step_plans(draw):
    pool = draw(st.lists(features(), max_size=4))
    some = st.lists(st.sampled_from(pool), max_size=5).map(tuple) if pool else st.just(())
    new = st.builds(NewRequestData, names, counts, blocks, some, counts, counts, counts, blocks)
    updates = st.dictionaries(st.integers(0, 9), st.sampled_from(pool), max_size=2) if pool else st.just({})
    loads = st.builds(KvLoad, names, blocks, counts, counts, st.booleans())
    cached = st.builds(CachedRequestData, names, counts, st.none() | blocks, st.booleans(), updates, blocks)
    return StepPlan(
        draw(counts),
        draw(st.dictionaries(names, counts, max_size=4)),
        draw(st.dictionaries(names, blocks, max_size=2)),
        draw(st.lists(new, max_size=2).map(tuple)),
        draw(st.lists(cached, max_size=2).map(tuple)),
        *(draw(ids) for _ in range(6)),
        draw(st.dictionaries(names, counts, max_size=2)),
        draw(st.lists(loads, max_size=2).map(tuple)),
        draw(ids),
    )


def buffer_of(message):
    buffer = bytearray(message.size.total_bytes)
    message.write_to(memoryview(buffer))
    return buffer


@settings(max_examples=150)
@given(step_plans())
def test_a_plan_survives_and_weighs_what_its_handles_say(plan):
    message = encode(plan)
    assert message.size == message_size(plan)
    assert message.size.total_bytes == sum(frame.nbytes for frame in message.frames)
    assert message.size.payload_bytes == sum(handle.nbytes for handle in message.tensors)
    assert message.size.num_unique_tensors <= message.size.num_tensors
    decoded = decode(buffer_of(message))
    assert decoded.plan == plan
    assert tensor_digests(decoded.tensors) == tensor_digests(message.tensors)
    assert buffer_of(encode(decoded.plan)) == buffer_of(message), "what is sent on is what came"


@given(step_plans())
def test_size_needs_no_sources_where_digests_tell_tensors_apart(plan):
    """The property that lets a simulation without tensors predict the bytes of a run with them."""

    def with_digests(data, place):
        if isinstance(data, TensorHandle):
            return replace(data, digest=data.digest or f"own {place}")
        return (
            tuple(with_digests(part, (*place, i)) for i, part in enumerate(data)) if isinstance(data, tuple) else data
        )

    def without_sources(data):
        if isinstance(data, TensorHandle):
            return replace(data, source=None)
        return tuple(without_sources(part) for part in data) if isinstance(data, tuple) else data

    def mapped(change):
        def feature(one, i):
            kept = one.data and {k: Field(change(f.data, (i, k)), f.kind) for k, f in one.data.fields.items()}
            return replace(one, data=None if one.data is None else MediaItem(kept or {}))

        return lambda plan: replace(
            plan, new=[replace(n, mm_features=[feature(f, i) for i, f in enumerate(n.mm_features)]) for n in plan.new]
        )

    digested = mapped(with_digests)(plan)
    sized = mapped(lambda data, _: without_sources(data))(digested)
    assert message_size(sized) == encode(digested).size
