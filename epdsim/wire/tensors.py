"""Between handles and torch tensors. The only module of `epdsim.wire` that imports torch, and imported only where tensors are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from epdsim.core.errors import InputError
from epdsim.core.items import ITEM_BYTES, FieldData, TensorHandle
from epdsim.wire.codec import raw_bytes

Nested = torch.Tensor | int | float | Sequence["Nested"] | None
"""vLLM's `NestedTensors`, with the plain numbers that it lets pass."""


def to_handle(tensor: torch.Tensor) -> TensorHandle:
    """The handle of a tensor, which stays behind it uncopied; a tensor on the meta device gives a size-only handle.

    Raises:
        InputError: The dtype is none of those that travel (quantised and sub-byte integers).
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise InputError(f"a tensor of {dtype}", f"the dtypes that travel are {', '.join(ITEM_BYTES)}")
    return TensorHandle(dtype, tuple(tensor.shape), None if tensor.is_meta else tensor)


def to_tensor(handle: TensorHandle) -> torch.Tensor:
    """The tensor of a handle: the one behind it, else a copy of its bytes, on the meta device for a size-only handle."""
    dtype: torch.dtype = getattr(torch, handle.dtype)
    if isinstance(handle.source, torch.Tensor):
        return handle.source
    if handle.source is None:
        return torch.empty(handle.shape, dtype=dtype, device="meta")
    data = raw_bytes(handle)
    if not data.nbytes:
        return torch.empty(handle.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(handle.shape)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in row-major order; without copying when it is contiguous in host memory."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
    if flat.numel() and flat.stride(0) != 1:
        # One element of a strided tensor counts as contiguous and still cannot be viewed as bytes.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def to_field_data(value: Nested) -> FieldData:
    """Nested tensors as the core holds them."""
    if isinstance(value, torch.Tensor):
        return to_handle(value)
    if value is None or isinstance(value, (int, float)):
        return value
    return tuple(to_field_data(part) for part in value)


def from_field_data(data: FieldData) -> Nested:
    """The way back from `to_field_data`, with lists for what nests."""
    if isinstance(data, TensorHandle):
        return to_tensor(data)
    return [from_field_data(part) for part in data] if isinstance(data, tuple) else data
