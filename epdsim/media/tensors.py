"""Items with tensors behind their handles. The only module of `epdsim.media` that imports torch; import it only where tensors are.

from epdsim.media.tensors import as_meta, materialise
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import torch

from epdsim.core.items import Field, FieldData, MediaItem, TensorHandle

_Fill = Callable[[TensorHandle, str], object]


def materialise(item: MediaItem, content: str) -> MediaItem:
    """The item with a CPU tensor behind every handle, the same for the same content in every run.

    Handles that carry their values keep them; the others are filled from `content` and the field's name: floating point in [-1, 1),
    bytes from 0 to 255, wider integers from 0 to 63, booleans true.

    Args:
        item: As a family rendered it; shared, never changed.
        content: Identity of the picture, clip or sound.

    Returns:
        A new item; its handles have the dtype and shape of the old ones and a digest of content and name.
    """
    return _filled(item, content, _tensor)


def as_meta(item: MediaItem) -> MediaItem:
    """The item with tensors of the meta device behind its size-only handles; handles that carry values stay as they are."""
    return _filled(item, "", _meta)


def _filled(item: MediaItem, content: str, fill: _Fill) -> MediaItem:
    return MediaItem(
        {
            name: Field(_fill_data(one.data, f"{content}/{name}" if content else "", fill), one.kind)
            for name, one in item.fields.items()
        }
    )


def _fill_data(data: FieldData, identity: str, fill: _Fill) -> FieldData:
    if isinstance(data, tuple):
        return tuple(
            _fill_data(part, f"{identity}/{number}" if identity else "", fill) for number, part in enumerate(data)
        )
    if not isinstance(data, TensorHandle):
        return data
    digest = hashlib.sha256(identity.encode()).hexdigest() if identity else data.digest
    return replace(data, source=fill(data, digest), digest=digest)


def _meta(handle: TensorHandle, digest: str) -> object:  # noqa: ARG001
    if handle.source is not None:
        return handle.source
    return torch.empty(handle.shape, dtype=getattr(torch, handle.dtype), device="meta")


def _tensor(handle: TensorHandle, digest: str) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, handle.dtype)
    if isinstance(handle.source, torch.Tensor):
        return handle.source
    if isinstance(handle.source, (bytes, bytearray, memoryview)):
        raw = bytearray(handle.source)
        return (
            torch.frombuffer(raw, dtype=dtype).reshape(handle.shape) if raw else torch.empty(handle.shape, dtype=dtype)
        )
    assert handle.source is None, f"{handle!r} has a source that is neither bytes nor a tensor"
    random = torch.Generator().manual_seed(int(digest[:15], 16))
    if dtype.is_floating_point:
        return torch.rand(handle.shape, generator=random).mul_(2).sub_(1).to(dtype)
    if dtype is torch.bool:
        return torch.ones(handle.shape, dtype=dtype)
    return torch.randint(0, 256 if dtype is torch.uint8 else 64, handle.shape, generator=random, dtype=dtype)
