"""Media items and the spans they occupy in a prompt.

A picture, clip or sound becomes, after render, a `MediaItem`: named fields, each a tensor with a placement flag. It occupies a
`PlaceholderRange` of the prompt, and the two together with the content hash are a `MediaFeature` (vLLM's
`MultiModalFeatureSpec`). The core never holds tensors: a field's data is a `TensorHandle`, which knows dtype, shape and bytes, and
behind which raw bytes or a real tensor may hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod
from types import MappingProxyType

from epdsim.core.records import record

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
        "int16": 2,
        "uint16": 2,
        "float16": 2,
        "bfloat16": 2,
        "int32": 4,
        "uint32": 4,
        "float32": 4,
        "int64": 8,
        "uint64": 8,
        "float64": 8,
        "complex32": 4,
        "complex64": 8,
        "complex128": 16,
    }
)
"""Bytes of one element, by torch's name of the dtype."""

_NATIVE_FORMATS: Mapping[str, str] = MappingProxyType(
    {"bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "uint64": "Q"}
    | {"int64": "q", "float16": "e", "float32": "f", "float64": "d"}
)


@record
class TensorHandle:
    """A tensor as the core sees it: dtype, shape, and an opaque source of its bytes.

    Attributes:
        dtype: torch's name without prefix, for example `"bfloat16"`.
        shape: Sizes of the dimensions; `()` is a scalar tensor.
        source: What the bytes come from: raw little-endian bytes, a real tensor, or None for a tensor of which only the size
            matters. It takes no part in equality; `digest` stands for the content.
        digest: Content digest, empty when nobody asked for one.
    """

    dtype: str
    shape: tuple[int, ...]
    source: object = field(default=None, compare=False, repr=False)
    digest: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the raw data."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)

    def flat_values(self) -> list[int] | list[float] | list[bool]:
        """All elements in row-major order; only for handles whose source is raw bytes (metadata such as grids).

        Raises:
            TypeError: The source is not raw bytes, or Python has no native form of the dtype (bfloat16, float8).
        """
        if not isinstance(self.source, (bytes, bytearray, memoryview)) or self.dtype not in _NATIVE_FORMATS:
            raise TypeError(f"no values behind {self!r}: the source must be raw bytes of a native dtype")
        return memoryview(self.source).cast("B").cast(_NATIVE_FORMATS[self.dtype]).tolist()  # type: ignore[call-overload]


FieldData = TensorHandle | int | float | tuple["FieldData", ...] | None
"""A field's value, nested as in vLLM's `NestedTensors`; None when only the field's kind is known (vLLM: cached elsewhere)."""


@record
class BatchedKind:
    """One row of a batch per item."""

    keep_on_cpu: bool = False


@record
class FlatKind:
    """A slice along `dim` of a tensor that all items share.

    Attributes:
        slices: One `(start, stop, step)` per item, each of the three possibly None; for several dimensions a tuple of them.
    """

    slices: tuple[object, ...]
    dim: int = 0
    keep_on_cpu: bool = False


@record
class SharedKind:
    """The same value for all `batch_size` items."""

    batch_size: int
    keep_on_cpu: bool = False


FieldKind = BatchedKind | FlatKind | SharedKind


@record
class Field:
    """One named field of an item: data and how items are batched on it (vLLM's `MultiModalFieldElem`)."""

    data: FieldData
    kind: FieldKind

    @property
    def keep_on_cpu(self) -> bool:
        """Whether the worker reads the field on the host, for example to compute positions."""
        return self.kind.keep_on_cpu

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the field."""
        return _data_nbytes(self.data)


def _data_nbytes(data: FieldData) -> int:
    if isinstance(data, TensorHandle):
        return data.nbytes
    if isinstance(data, tuple):
        return sum(_data_nbytes(part) for part in data)
    return 0 if data is None else 8


@record
class MediaItem:
    """The processed fields of one picture, clip or sound (vLLM's `MultiModalKwargsItem`), in wire order.

    An item with an `address` field is a reference into the shared-memory cache: it is tiny, stands for the payload, and must
    reach the worker so that the sender's reference count is balanced (vLLM PR 54994).
    """

    fields: Mapping[str, Field]

    @property
    def is_address(self) -> bool:
        """Whether the item is a shared-memory address in place of its payload."""
        return "address" in self.fields

    @property
    def nbytes(self) -> int:
        """Bytes of all fields."""
        return sum(one.nbytes for one in self.fields.values())

    def subset(self, names: Sequence[str] | frozenset[str] = frozenset(), *, keep_on_cpu: bool = True) -> MediaItem:
        """The item with only the named fields and, unless told otherwise, those kept on the CPU; order unchanged."""
        kept = {k: f for k, f in self.fields.items() if k in names or (keep_on_cpu and f.keep_on_cpu)}
        return MediaItem(kept)


@record
class PlaceholderRange:
    """The span `[offset, offset + length)` of the prompt that an item fills.

    Attributes:
        offset: First token.
        length: Tokens, at least 1 on the wire.
        is_embed: One byte per token of the span, 1 where an embedding goes; None when every token takes one.
    """

    offset: int
    length: int
    is_embed: bytes | None = None

    def __post_init__(self) -> None:
        assert self.is_embed is None or len(self.is_embed) == self.length, "the mask covers the span"

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.offset + self.length

    @property
    def num_embeds(self) -> int:
        """Embeddings that the span takes: what the encoder must yield and the encoder cache must hold."""
        return self.length if self.is_embed is None else self.is_embed.count(1)

    def embeds_before(self, index: int) -> int:
        """Embeddings among the first `index` tokens of the span."""
        return index if self.is_embed is None else self.is_embed.count(1, 0, index)


@record
class MediaFeature:
    """One item in its place in one request (vLLM's `MultiModalFeatureSpec`).

    Attributes:
        modality: `"image"`, `"video"` or `"audio"`.
        identifier: Key of its embeddings in the encoder cache and of its tokens in block keys.
        position: Where it stands in the prompt.
        data: Its fields, or None when the receiver must already hold them.
        mm_hash: Key in the processor cache; equal to the identifier unless an adapter prefixes the latter (vLLM PR 31927).
    """

    modality: str
    identifier: str
    position: PlaceholderRange
    data: MediaItem | None = None
    mm_hash: str = ""

    def moved(self, tokens: int) -> MediaFeature:
        """The same item so many tokens further on."""
        return replace(self, position=replace(self.position, offset=self.position.offset + tokens))
