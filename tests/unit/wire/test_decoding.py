"""Decoding: what is refused, and that the error says where."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, FlatKind, SharedKind
from epdsim.wire import Limits, decode_blob, decode_item
from epdsim.wire.neutral import item_to_neutral

PLACE = "features.kwargs_data.image[0]"


def raw(data: bytes, code: int = 3) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, data)


def message(data: Any = None, field: Any = ("batched", {"keep_on_cpu": True}), **more: Any) -> bytes:
    return msgspec.msgpack.encode({"x": {"data": data, "field": field, **more}})


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


PICKLE = pickle.dumps(_Bomb())

REFUSED: list[tuple[bytes, str]] = [
    # Pickles, wherever they stand.
    (message(raw(PICKLE, 1)), r"field 'x': .*a pickle \(extension 1\); pickles are never loaded"),
    (message(raw(PICKLE, 2)), r"field 'x': .*a pickle \(extension 2\)"),
    (message(["float32", [1], raw(PICKLE, 1)]), r"field 'x': .*a pickle \(extension 1\)"),
    (message(None, raw(PICKLE, 2)), r"field 'x'"),
    (msgspec.msgpack.encode({"x": raw(PICKLE, 1)}), r"field 'x': .*a pickle \(extension 1\)"),
    (msgspec.msgpack.encode(raw(PICKLE, 2)), r"one map of fields, this is a pickle \(extension 2\)"),
    (message(raw(b"1234", 9)), r"unknown extension 9"),
    # Not one map of fields.
    (msgspec.msgpack.encode([1]), "one map of fields, this is a list"),
    (msgspec.msgpack.encode(None), "one map of fields, this is null"),
    (msgspec.msgpack.encode("abc"), "one map of fields, this is text"),
    (msgspec.msgpack.encode({1: {}}), "a field named 1: a field's name is text, this is a number"),
    (msgspec.msgpack.encode({"x": 5}), r'field \'x\': a field is a map of "data" and "field", this is a number'),
    (msgspec.msgpack.encode({"x": {"data": None}}), r"the keys \['data'\]"),
    (message(modality="image"), r"the keys \['data', 'field', 'modality'\]"),
    # Broken messages.
    (b"", "not a msgpack message.*truncated"),
    (message()[:-3], "not a msgpack message.*truncated"),
    (message() + b"\x00", "not a msgpack message.*trailing"),
    (b"\xc1", "not a msgpack message"),
    (b"\xdd\xff\xff\xff\xff", "not a msgpack message.*truncated"),
    (b"\x81\xa1\xff\x01", "not a msgpack message.*UTF-8"),
    (b"\x91" * 5000 + b"\xc0", "nested without end"),
    # Broken tensors.
    (message(["float32", [2], raw(b"1234")]), r"has 4 bytes: float32 of shape \[2\] takes 8"),
    (message(["float32", [], raw(b"")]), "has 0 bytes"),
    (message(["float32", [-1], raw(b"1234")]), "a shape is a list of sizes"),
    (message(["float32", [True], raw(b"1234")]), "a shape is a list of sizes"),
    (message(["float32", 1, raw(b"1234")]), "a shape is a list of sizes"),
    (message(["float32", [1]]), "a tensor is dtype, shape and data, this has 2 parts"),
    (message(["object", [1], raw(b"1234")]), "the dtype 'object'"),
    (message(["float32", [1], 1]), "refers to buffer 1: a blob has its data inside"),
    (message(["float32", [1], b"1234"]), "this is bytes"),
    (message(["float32", [1], {"a": 1}]), "this is a map"),
    # Broken values.
    (message("text"), "this is text"),
    (message([None]), "this is null"),
    (message([1, ["x"]]), "a tensor is dtype, shape and data, this has 1 parts"),
    (message({"a": 1}), "this is a map"),
    # Broken kinds.
    (message(None, None), "has no kind"),
    (message(None, ["batched"]), "has no kind"),
    (message(None, [5, {}]), "has no kind"),
    (message(None, ["sliced", {}]), "the kind 'sliced': the kinds are batched, flat, shared"),
    (message(None, ["__init__", {}]), "the kind '__init__'"),
    (message(None, ["batched", {"modality": "image"}]), r"the batched arguments \['modality'\]"),
    (message(None, ["batched", {"keep_on_cpu": 1}]), "keep_on_cpu = 1: true or false"),
    (message(None, ["shared", {}]), "the shared arguments"),
    (message(None, ["shared", {"batch_size": 1.5}]), "batch_size = 1.5: a whole number"),
    (message(None, ["flat", {"slices": [[0, 1, None]], "dim": None}]), "dim = None: a whole number"),
    (message(None, ["flat", {"slices": [[0, 1]]}]), r"the slice \[0, 1\]"),
    (message(None, ["flat", {"slices": [[0, "1", None]]}]), "the slice"),
    (message(None, ["flat", {"slices": "all"}]), "a slice bound 'all'"),
    (message(None, ["flat", {"slices": [[[[[[0, 1, None]]]]]]}]), "nested too deep"),
]


@pytest.mark.parametrize(("broken", "said"), REFUSED)
def test_a_broken_message_is_refused_with_its_place(broken: bytes, said: str):
    with pytest.raises(InputError, match=said) as caught:
        decode_item(broken, PLACE)
    assert PLACE in str(caught.value)
    with pytest.raises(InputError):
        decode_blob(msgspec.to_builtins(broken), PLACE)


@pytest.mark.parametrize("text", ["", "A", "gA=", "gA==\n", " gA==", "gA==gA==", "#" * 4, "é", "g" * 41])
def test_text_that_is_no_base64_or_no_message_is_refused(text: str):
    with pytest.raises(InputError, match=r"features.kwargs_data.image\[0\]"):
        decode_blob(text, PLACE)
    with pytest.raises(InputError):
        decode_blob(text.encode(), PLACE)


class TestLimits:
    def test_bytes(self):
        blob = msgspec.to_builtins(message(["uint8", [50], raw(bytes(50))]))
        size = len(message(["uint8", [50], raw(bytes(50))]))
        assert decode_blob(blob, limits=Limits(blob_bytes=size))
        with pytest.raises(InputError, match=f"the limit is {size - 1}"):
            decode_blob(blob, limits=Limits(blob_bytes=size - 1))
        with pytest.raises(InputError, match="the limit is 3 bytes of message"):
            decode_blob(blob, limits=Limits(blob_bytes=3))

    def test_fields(self):
        wide = msgspec.msgpack.encode({str(i): {"data": None, "field": ["batched", {}]} for i in range(5)})
        assert len(decode_item(wide, limits=Limits(fields=5)).fields) == 5
        with pytest.raises(InputError, match="has 5 fields: the limit is 4"):
            decode_item(wide, limits=Limits(fields=4))

    def test_depth(self):
        tensor = ["uint8", [], raw(b"1")]
        assert decode_item(message([[tensor]]), limits=Limits(depth=2))
        with pytest.raises(InputError, match="nested deeper than the limit"):
            decode_item(message([[tensor]]), limits=Limits(depth=1))
        assert decode_item(message(tensor), limits=Limits(depth=0))


def test_arguments_with_defaults_may_be_left_out():
    kinds = {
        "a": {"data": None, "field": ["batched", {}]},
        "b": {"data": None, "field": ["flat", {"slices": [[None, 3, None], [3, None, None]]}]},
        "c": {"data": 1, "field": ["shared", {"batch_size": 2}]},
    }
    item = decode_item(msgspec.msgpack.encode(kinds))
    assert [one.kind for one in item.fields.values()] == [
        BatchedKind(),
        FlatKind(((None, 3, None), (3, None, None))),
        SharedKind(2),
    ]


def test_tensors_are_views_into_the_message():
    received = bytearray(message(["uint8", [200], raw(bytes(200))]))
    item = decode_item(memoryview(received))
    received[20:120] = b"\xff" * 100
    assert "ff" in item_to_neutral(item)["x"]["data"]["hex"]


def test_half_a_surrogate_pair_is_no_base64():
    with pytest.raises(InputError, match="not base64"):
        decode_blob("\ud800")
