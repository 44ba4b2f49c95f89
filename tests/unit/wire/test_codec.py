"""Encoding: bytes against a plain msgpack encoder, sizes from shapes alone, and the published payload."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, FieldData, FlatKind, MediaItem, SharedKind, TensorHandle
from epdsim.wire import blob_size, decode_blob, encode_blob, encode_item, item_size, raw_bytes

# The worked example of the wire reference: a picture of 8 float32 "pixels" with its grid, and its metadata alone. Both texts were
# accepted and encoded again without a difference by vLLM 0.32.0.
PAYLOAD_BLOB = (
    "gqxwaXhlbF92YWx1ZXOCpGRhdGGTp2Zsb2F0MzKSBALHIAMAAAAAAAAAPgAAgD4AAMA+AAAAPwAAID8AAEA/AABgP6VmaWVsZJKkZmxhdIOra2VlcF9vbl9jcHX"
    "CpnNsaWNlc5GTAATAo2RpbQCuaW1hZ2VfZ3JpZF90aHeCpGRhdGGTpWludDY0kQPHGAMBAAAAAAAAAAQAAAAAAAAABAAAAAAAAAClZmllbGSSp2JhdGNoZWSBq2"
    "tlZXBfb25fY3B1ww=="
)
METADATA_BLOB = (
    "ga5pbWFnZV9ncmlkX3Rod4KkZGF0YZOlaW50NjSRA8cYAwEAAAAAAAAABAAAAAAAAAAEAAAAAAAAAKVm"
    "aWVsZJKnYmF0Y2hlZIGra2VlcF9vbl9jcHXD"
)
PIXELS = TensorHandle("float32", (4, 2), np.arange(8, dtype="<f4") / np.float32(8))
GRID = TensorHandle("int64", (3,), np.array([1, 4, 4], "<i8").tobytes())
PICTURE = MediaItem(
    {
        "pixel_values": Field(PIXELS, FlatKind(((0, 4, None),))),
        "image_grid_thw": Field(GRID, BatchedKind(keep_on_cpu=True)),
    }
)


def test_the_worked_example_comes_out_to_the_byte_and_goes_in_again():
    assert encode_blob(PICTURE) == PAYLOAD_BLOB
    assert encode_blob(PICTURE.subset()) == METADATA_BLOB
    assert encode_blob(decode_blob(PAYLOAD_BLOB)) == PAYLOAD_BLOB
    assert decode_blob(PAYLOAD_BLOB) == PICTURE
    assert decode_blob(METADATA_BLOB).fields["image_grid_thw"].data.flat_values() == [1, 4, 4]  # type: ignore[union-attr]


def plain(data: FieldData) -> object:
    """A value as any msgpack encoder writes it."""
    if isinstance(data, TensorHandle):
        return (data.dtype, data.shape, msgspec.msgpack.Ext(3, bytes(raw_bytes(data))))
    return [plain(part) for part in data] if isinstance(data, tuple) else data


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 255, 256, 257, 65_535, 65_536, 65_537])
def test_heads_of_every_length_are_those_of_a_plain_encoder(count: int):
    data = TensorHandle("uint8", (count,), bytes(count))
    item = MediaItem({"x" * (count % 300): Field((data,) * (count % 20), SharedKind(count))})
    name, one = next(iter(item.fields.items()))
    kind = ["shared", {"keep_on_cpu": False, "batch_size": count}]
    expected = msgspec.msgpack.encode({name: {"data": plain(one.data), "field": kind}})
    assert encode_item(item) == expected
    assert item_size(item) == len(expected)


@pytest.mark.parametrize("count", [15, 16, 65_536])
def test_lists_and_maps_of_every_length_are_those_of_a_plain_encoder(count: int):
    nested = MediaItem({"a": Field((1,) * count, BatchedKind())})
    expected = {"a": {"data": [1] * count, "field": ["batched", {"keep_on_cpu": False}]}}
    assert encode_item(nested) == msgspec.msgpack.encode(expected)
    many = MediaItem({f"f{i}": Field(None, BatchedKind(keep_on_cpu=True)) for i in range(count)})
    wide = {f"f{i}": {"data": None, "field": ["batched", {"keep_on_cpu": True}]} for i in range(count)}
    assert encode_item(many) == msgspec.msgpack.encode(wide)


@pytest.mark.parametrize(
    "number",
    [
        0,
        127,
        128,
        -1,
        -32,
        -33,
        255,
        2**16,
        -(2**15) - 1,
        2**32,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        0.5,
        -0.0,
        True,
        False,
    ],
)
def test_numbers_pass_through(number: float):
    item = MediaItem({"n": Field((number,), BatchedKind()), "m": Field(number, BatchedKind())})
    decoded = decode_blob(encode_blob(item))
    assert repr(decoded.fields["n"].data) == repr((number,))
    assert repr(decoded.fields["m"].data) == repr(number)
    assert blob_size(item) == len(encode_blob(item))


def test_a_number_beyond_64_bits_is_refused_by_place():
    with pytest.raises(InputError, match=r"kwargs_data.image\[0\]: field 'n' = 18446744073709551616: .*64 bits"):
        encode_blob(MediaItem({"n": Field((2**64,), BatchedKind())}), "kwargs_data.image[0]")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float8_e4m3fn", "complex128", "uint16"])
def test_all_shapes_and_dtypes_come_back(dtype: str, shape: tuple[int, ...]):
    empty = TensorHandle(dtype, shape)
    data = bytes(i % 2 for i in range(empty.nbytes))
    item = MediaItem(
        {"x": Field((TensorHandle(dtype, shape, data),), FlatKind((((None, None, None), (0, 3, 2)),), dim=-1))}
    )
    decoded = decode_blob(encode_blob(item))
    assert decoded == item
    back = decoded.fields["x"].data
    assert isinstance(back, tuple)
    assert isinstance(back[0], TensorHandle)
    assert bytes(raw_bytes(back[0])) == data
    assert blob_size(MediaItem({"x": Field((empty,), item.fields["x"].kind)})) == len(encode_blob(item))


def qwen3_vl_picture(patches: int, slices: tuple[object, ...]) -> MediaItem:
    return MediaItem(
        {
            "pixel_values": Field(TensorHandle("bfloat16", (patches, 1536)), FlatKind(slices)),
            "image_grid_thw": Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True)),
        }
    )


def test_the_blob_of_a_whole_picture_is_that_of_the_release():
    """The digest was taken from the codec of vLLM 0.32.0 for the item that its Qwen-VL field factory makes of these bytes."""
    data = bytes((7 * i + i // 256) % 256 for i in range(280 * 1536 * 2))
    grid = np.array([1, 14, 20], "<i8").tobytes()
    fields = qwen3_vl_picture(280, (((0, 280, None),),)).fields
    behind = {"pixel_values": data, "image_grid_thw": grid}
    item = MediaItem({name: replace(one, data=replace(one.data, source=behind[name])) for name, one in fields.items()})
    digest = hashlib.sha256(encode_blob(item).encode()).hexdigest()
    assert digest == "632be4a02fe75f8f9790228dbc70529ca088c5522b74fc23584c827487ef60fb"


def test_the_blob_of_a_published_picture_has_its_size():
    """A 200 x 300 JPEG on Qwen3-VL-2B is 280 patches.

    1,147,116 characters is what the codec of vLLM 0.32.0 gives for the item of its own field factory (a slice tuple per item). The
    published example (llm-d-router, communication document) says 1,147,128 for a somewhat older build: within 0.002 %.
    """
    item = qwen3_vl_picture(280, (((0, 280, None),),))
    assert blob_size(item) == 1_147_116
    assert blob_size(item) == pytest.approx(1_147_128, rel=2e-5)
    second_of_two = qwen3_vl_picture(280, (((0, 280, None),), ((280, 560, None),)))
    assert blob_size(second_of_two) == 1_147_128


def test_an_array_behind_a_handle_is_encoded_row_by_row_even_when_strided():
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    item = MediaItem({"x": Field(TensorHandle("int32", (3, 2), array.T), BatchedKind())})
    same = MediaItem({"x": Field(TensorHandle("int32", (3, 2), array.T.tobytes()), BatchedKind())})
    assert encode_blob(item) == encode_blob(same)


def test_bytes_that_are_missing_or_do_not_fit_are_refused_by_place():
    with pytest.raises(InputError, match="item: field 'x' is size-only"):
        encode_blob(MediaItem({"x": Field(TensorHandle("int32", (2,)), BatchedKind())}))
    with pytest.raises(InputError, match=r"item: field 'x' has 7 bytes: int32 of shape \[2\] takes 8"):
        encode_blob(MediaItem({"x": Field(TensorHandle("int32", (2,), bytes(7)), BatchedKind())}))


def test_the_text_is_standard_base64():
    assert base64.b64decode(encode_blob(PICTURE), validate=True) == encode_item(PICTURE)
    assert encode_blob(MediaItem({})) == "gA=="


def test_large_tensors_are_sized_without_being_made():
    huge = MediaItem({"x": Field(TensorHandle("float32", (2**20, 2**9)), BatchedKind())})
    assert item_size(huge) > 2**31
    with pytest.raises(InputError, match="4 GiB"):
        item_size(MediaItem({"x": Field(TensorHandle("float32", (2**30,)), BatchedKind())}))
