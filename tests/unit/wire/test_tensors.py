"""Handles and torch tensors."""

from __future__ import annotations

import pytest
import torch

from epdsim.core.errors import InputError
from epdsim.core.items import ITEM_BYTES, BatchedKind, Field, MediaItem, TensorHandle
from epdsim.wire import decode_blob, encode_blob, raw_bytes
from epdsim.wire.tensors import from_field_data, tensor_bytes, to_field_data, to_handle, to_tensor


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 2)])
def test_a_tensor_survives_the_blob(dtype: str, shape: tuple[int, ...]):
    bits = torch.arange(torch.Size(shape).numel() * ITEM_BYTES[dtype], dtype=torch.uint8) % 2
    tensor = (
        bits.view(getattr(torch, dtype)).reshape(shape)
        if bits.numel()
        else torch.empty(shape, dtype=getattr(torch, dtype))
    )
    handle = to_handle(tensor)
    assert (handle.dtype, handle.shape, handle.nbytes) == (dtype, shape, tensor.nbytes)
    item = MediaItem({"x": Field(handle, BatchedKind())})
    decoded = decode_blob(encode_blob(item)).fields["x"].data
    assert isinstance(decoded, TensorHandle)
    back = to_tensor(decoded)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bytes(tensor_bytes(back)) == bytes(bits.numpy().tobytes())


def test_a_contiguous_tensor_is_not_copied():
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    view = tensor_bytes(tensor)
    tensor.fill_(1)
    assert bytes(view) == b"\x80\x3f" * 4
    assert to_tensor(to_handle(tensor)) is tensor


def test_a_decoded_tensor_owns_its_bytes():
    source = bytearray(8)
    tensor = to_tensor(TensorHandle("int64", (1,), source))
    source[0] = 5
    assert tensor.tolist() == [0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.arange(6)[::2],
        torch.arange(6)[::2][:1],
        torch.arange(4.0, requires_grad=True),
        torch.view_as_complex(torch.arange(4.0).reshape(2, 2)).conj(),
        torch.arange(3.0)._neg_view(),
    ],
)
def test_strided_and_lazy_tensors_give_the_bytes_of_their_values(tensor: torch.Tensor):
    plain = torch.tensor(tensor.tolist(), dtype=tensor.dtype)
    assert bytes(tensor_bytes(tensor)) == plain.numpy().tobytes()


def test_a_meta_tensor_is_a_size_only_handle_and_back():
    handle = to_handle(torch.empty(280, 1536, dtype=torch.bfloat16, device="meta"))
    assert handle.source is None
    assert handle.nbytes == 860_160
    assert to_tensor(handle).device.type == "meta"
    with pytest.raises(InputError, match="size-only"):
        raw_bytes(handle)


def test_nested_values_go_both_ways():
    tensor = torch.ones(2)
    data = to_field_data([tensor, [1, 0.5, []], tensor])
    assert isinstance(data, tuple)
    assert data[1] == (1, 0.5, ())
    back = from_field_data(data)
    assert isinstance(back, list)
    assert back[0] is tensor
    assert back[1] == [1, 0.5, []]
    assert from_field_data(to_field_data(None)) is None


def test_dtypes_that_do_not_travel_are_refused():
    with pytest.raises(InputError, match="uint4"):
        to_handle(torch.empty(1, dtype=torch.uint4))
