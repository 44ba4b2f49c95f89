"""The bytes behind a handle, and a handle over received bytes.

torch is imported inside the functions: sizes are asked for in runs that never touch a tensor and should not pay for its import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from epdsim.core.items import TensorHandle


def tensor_bytes(handle: TensorHandle) -> memoryview:
    """The raw row-major bytes behind a handle, as a view wherever the source allows one.

    Args:
        handle: Its source must be raw bytes or a CPU tensor; a tensor that is not contiguous is copied.

    Returns:
        A flat view of `handle.nbytes` bytes.

    Raises:
        TypeError: Nothing stands behind the handle, or the source disagrees with its dtype or shape.
    """
    source = handle.source
    if isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source).cast("B")
    else:
        import torch  # noqa: PLC0415 - late on purpose, see the module

        if not isinstance(source, torch.Tensor) or source.device.type != "cpu":
            raise TypeError(f"{handle!r} has no bytes behind it: the source must be raw bytes or a CPU tensor")
        if tuple(source.shape) != handle.shape or str(source.dtype) != f"torch.{handle.dtype}":
            raise TypeError(f"{handle!r} stands for a tensor {source.dtype} of shape {tuple(source.shape)}")
        view = source.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    if view.nbytes != handle.nbytes:
        raise TypeError(f"{handle!r} needs {handle.nbytes} bytes, its source has {view.nbytes}")
    return view


def tensor_over(dtype: str, shape: tuple[int, ...], memory: memoryview, digest: str = "") -> TensorHandle:
    """A handle whose source is a torch tensor over received memory, without a copy.

    Args:
        dtype: torch's name of the dtype.
        shape: Sizes of the dimensions.
        memory: Writable and aligned for the dtype, as many bytes as the tensor; the tensor keeps it alive.
        digest: Taken over into the handle.
    """
    import torch  # noqa: PLC0415 - late on purpose, see the module

    kind = getattr(torch, dtype)
    tensor = torch.frombuffer(memory, dtype=kind).view(shape) if memory.nbytes else torch.empty(shape, dtype=kind)
    return TensorHandle(dtype, shape, source=tensor, digest=digest)


def tensor_digests(handles: Sequence[TensorHandle]) -> tuple[str, ...]:
    """SHA-256 over dtype, shape and bytes of each tensor, in order.

    Computed from the bytes themselves on whichever side of a transport calls it; `TensorHandle.digest` is not trusted. SHA-256
    because processors have instructions for it: it ran twice as fast as BLAKE2b where it was chosen.
    """
    digests: list[str] = []
    for handle in handles:
        state = hashlib.sha256(f"{handle.dtype}{handle.shape}".encode())
        state.update(tensor_bytes(handle))
        digests.append(state.hexdigest())
    return tuple(digests)
