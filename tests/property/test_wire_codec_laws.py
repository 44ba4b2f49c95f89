"""Laws of the wire: blobs are the identity on items, sizes are exact, and no text whatever does worse than an `InputError`."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.core.items import (
    ITEM_BYTES,
    BatchedKind,
    Field,
    FieldData,
    FlatKind,
    MediaItem,
    PlaceholderRange,
    SharedKind,
    TensorHandle,
)
from epdsim.core.releases.dialects import named, release_names
from epdsim.core.slots import FeatureTables
from epdsim.wire import (
    GenerateRequest,
    blob_size,
    decode_blob,
    decode_item,
    encode_blob,
    encode_item,
    features_from_json,
    features_to_json,
    find_faults,
    item_from_neutral,
    item_to_neutral,
)


@st.composite
def tensors(draw: st.DrawFn) -> TensorHandle:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = ITEM_BYTES[dtype] * prod(shape)
    return TensorHandle(dtype, shape, draw(st.binary(min_size=count, max_size=count)))


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats() | st.booleans()
nested: st.SearchStrategy[FieldData] = st.recursive(
    tensors() | numbers, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
bound = st.none() | st.integers(-(2**40), 2**40)
one_slice = st.tuples(bound, bound, bound)
slices = st.lists(one_slice, max_size=3).map(tuple) | st.lists(
    st.lists(one_slice, min_size=1, max_size=3).map(tuple), max_size=3
).map(tuple)
kinds = (
    st.builds(BatchedKind, st.booleans())
    | st.builds(SharedKind, st.integers(0, 2**40), st.booleans())
    | st.builds(FlatKind, slices, st.integers(-3, 3), st.booleans())
)
items = st.dictionaries(st.text(max_size=40), st.builds(Field, nested | st.none(), kinds), max_size=4).map(MediaItem)


@given(items)
def test_a_blob_is_the_identity_on_items(item: MediaItem):
    blob = encode_blob(item)
    decoded = decode_blob(blob)
    # The neutral form shows fields, order, dtypes, shapes, bytes and kinds; as text it tells NaN from NaN-free and 1 from 1.0.
    assert json.dumps(item_to_neutral(decoded)) == json.dumps(item_to_neutral(item))
    assert encode_blob(decoded) == blob
    assert len(blob) == blob_size(item)
    event("zero-size tensor", "yes" if '"hex": ""' in json.dumps(item_to_neutral(item)) else "no")


@given(items)
def test_the_neutral_form_is_the_identity_on_items(item: MediaItem):
    again = item_from_neutral(json.loads(json.dumps(item_to_neutral(item))))
    assert json.dumps(item_to_neutral(again)) == json.dumps(item_to_neutral(item))


@given(items)
def test_a_message_is_what_a_plain_msgpack_decoder_reads(item: MediaItem):
    plain = msgspec.msgpack.decode(encode_item(item))
    assert list(plain) == list(item.fields)
    for name, one in item.fields.items():
        assert list(plain[name]) == ["data", "field"]
        assert plain[name]["field"][1]["keep_on_cpu"] is one.keep_on_cpu


@given(items, st.data())
def test_a_damaged_message_is_decoded_or_refused_by_place_and_nothing_else(item: MediaItem, data: st.DataObject):
    message = bytearray(encode_item(item))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not message:
            break
    said = refusal(decode_item, bytes(message), "features.kwargs_data.image[0]")
    assert said is None or "features.kwargs_data.image[0]" in said
    event("decoded" if said is None else "refused")


def refusal(decode: Callable[..., MediaItem], *arguments: Any) -> str | None:
    """The message of the refusal, None when an item comes out; anything else is raised."""
    try:
        decode(*arguments)
    except InputError as error:
        return str(error)
    return None


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_decoded_or_refused(data: bytes):
    for decode in (decode_item, decode_blob):
        assert refusal(decode, data) != ""


@st.composite
def tables(draw: st.DrawFn) -> FeatureTables[MediaItem]:
    """Parallel tables with null slots anywhere and masks here and there."""
    counts = draw(st.dictionaries(st.sampled_from(["image", "video", "audio"]), st.integers(0, 3), min_size=1))
    order = draw(st.permutations([modality for modality, count in counts.items() for _ in range(count)]))
    spans: dict[str, list[PlaceholderRange]] = {modality: [] for modality in counts}
    offset = 0
    for modality in order:
        length = draw(st.integers(1, 4))
        mask = draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length).map(bytes))
        offset += draw(st.integers(0, 2))
        spans[modality].append(PlaceholderRange(offset, length, mask))
        offset += length

    def slots() -> dict[str, list[MediaItem | None]] | None:
        return draw(
            st.none()
            | st.fixed_dictionaries({m: st.lists(st.none() | items, min_size=n, max_size=n) for m, n in counts.items()})
        )

    hashes = {modality: [f"{modality}{i}" for i in range(count)] for modality, count in counts.items()}
    return FeatureTables(hashes, spans, slots(), slots())


@settings(max_examples=50)
@given(tables())
def test_tables_survive_json_slot_by_slot(sent: FeatureTables[MediaItem]):
    text = json.loads(json.dumps(features_to_json(sent)))
    received = features_from_json(text)
    assert features_to_json(received) == text
    for modality, i in sent.positions():
        assert (received.payload(modality, i) is None) is (sent.payload(modality, i) is None)
        assert (received.metadata(modality, i) is None) is (sent.metadata(modality, i) is None)
    assert list(received.positions()) == list(sent.positions())
    assert received.mm_placeholders == sent.mm_placeholders
    assert (received.kwargs_data is None) is (sent.kwargs_data is None)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
top_level = st.sampled_from(sorted(GenerateRequest.model_fields)) | st.text(max_size=4)
feature_level = st.sampled_from(["mm_hashes", "mm_placeholders", "kwargs_data", "mm_metadata"])


@given(
    st.dictionaries(top_level, json_values, max_size=4) | json_values,
    st.dictionaries(feature_level, json_values | st.just({"image": [None]})),
    st.sampled_from(release_names()),
)
def test_any_json_is_judged_and_never_crashes(body: Any, features: dict[str, Any], release: str):
    if isinstance(body, dict):
        body = {"token_ids": [1], "sampling_params": {}, "features": features, **body}
    faults = find_faults(GenerateRequest, body, named(release))
    assert all(one.message and one.place for one in faults)
    event("accepted" if not faults else "refused")
