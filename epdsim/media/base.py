"""What every model family answers, and the checks and shapes that all of them share."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from operator import index
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from epdsim.core.errors import InputError
from epdsim.core.items import ITEM_BYTES, BatchedKind, Field, FieldKind, FlatKind, MediaItem, TensorHandle
from epdsim.core.records import record

_WIRE_DTYPES = ("bfloat16", "float16", "float32", "uint8")
_NONE: frozenset[str] = frozenset()


@record
class RenderedMedia:
    """What render makes of one picture, clip or sound.

    Attributes:
        modality: `"image"`, `"video"` or `"audio"`.
        num_tokens: Length of the placeholder range, with the marker, separator and timestamp tokens that vLLM counts in.
        is_embed: One byte per token of the range, 1 where an embedding goes; None when every token takes one.
        item: The fields that travel. Large tensors are size-only; small ones (grids, counts) carry their raw bytes.
        num_embeds: Embeddings that the encoder yields.
        embedding_bytes: Bytes of the entry in the encoder cache and the EC store.
        encoder_patches: Patches (mel positions for audio) that enter the encoder's attention layers.
        encoder_groups: Equal sequences into which they fall (frames, tiles, chunks) and which do not attend to one another; a
            last, shorter one counts as one.
        encoder_windows: Windows of the windowed layers over all groups; 0 when every layer attends over its whole group.
        prefix_tokens: Marker tokens that the chat template puts before the range.
        suffix_tokens: Marker tokens that it puts behind the range.
    """

    modality: str
    num_tokens: int
    is_embed: bytes | None
    item: MediaItem
    num_embeds: int
    embedding_bytes: int
    encoder_patches: int
    encoder_groups: int = 1
    encoder_windows: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens that it takes in a prompt: the placeholder range and the markers around it."""
        return self.prefix_tokens + self.num_tokens + self.suffix_tokens

    @property
    def payload_bytes(self) -> int:
        """Raw bytes of all fields, before any encoding for the wire."""
        return self.item.nbytes


class Family(Protocol):
    """One checkpoint of a model family: how it lays media out. Sizes are in pixels, durations in seconds.

    The methods raise `InputError` for a modality that the checkpoint lacks and for sizes that its processor refuses.

    Attributes:
        position_scheme: `"1d"`, or the model whose M-RoPE rules hold, for example `"mrope-qwen3-vl"`.
        position_fields: Per modality the fields that positions read.
    """

    position_scheme: ClassVar[str]
    position_fields: ClassVar[Mapping[str, frozenset[str]]]

    @property
    def name(self) -> str:
        """The name under which `family` finds it."""
        ...

    @property
    def modalities(self) -> frozenset[str]:
        """What it takes beside text."""
        ...

    @property
    def uses_mrope(self) -> bool:
        """Whether positions need the position fields of covered items as well."""
        ...

    def declared_metadata_fields(self, modality: str) -> frozenset[str]:
        """Fields that size the placeholder range of a modality, as vLLM 0.32 declares them; empty when it declares none."""
        ...

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture."""
        ...

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:
        """A clip of already sampled frames, `fps` of them a second."""
        ...

    def audio(self, duration_s: float) -> RenderedMedia:
        """A sound."""
        ...

    def image_size_for_tokens(self, num_tokens: int) -> tuple[int, int]:
        """Height and width of a picture whose placeholder is as near as possible to `num_tokens`."""
        ...


@dataclass(frozen=True, kw_only=True)
class BaseFamily:
    """The parts that families share; subclasses are records of a checkpoint's constants.

    Attributes:
        name: Name of the checkpoint.
        hidden: Width of one embedding as the language model takes it.
        wire_dtype: dtype of pixels and mel features in the payload. Processors yield float32; vLLM casts it to the model's dtype
            (bfloat16); vLLM 0.32 ships uint8 where the worker normalises on the device.
        embed_dtype: dtype of embeddings.
    """

    position_scheme: ClassVar[str] = "1d"
    position_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})
    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})

    name: str
    hidden: int
    wire_dtype: str = "bfloat16"
    embed_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_constant(self.name, one.name, str(one.type), getattr(self, one.name), one.metadata.get("minimum", 1))
        self._check_choice("wire_dtype", _WIRE_DTYPES)
        self._check_choice("embed_dtype", _WIRE_DTYPES[:3])

    @property
    def modalities(self) -> frozenset[str]:
        """What it takes beside text."""
        return frozenset({"image"})

    @property
    def uses_mrope(self) -> bool:
        """Whether the position scheme is one of M-RoPE."""
        return self.position_scheme.startswith("mrope")

    def declared_metadata_fields(self, modality: str) -> frozenset[str]:
        """Fields that size the placeholder range of a modality, as vLLM 0.32 declares them."""
        return self.metadata_fields.get(modality, _NONE)

    def image(self, height: int, width: int) -> RenderedMedia:  # noqa: ARG002 (the signature is the family's)
        """A picture; this family takes none."""
        raise self._lacks("image")

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:  # noqa: ARG002
        """A clip; this family takes none."""
        raise self._lacks("video")

    def audio(self, duration_s: float) -> RenderedMedia:  # noqa: ARG002
        """A sound; this family takes none."""
        raise self._lacks("audio")

    def image_size_for_tokens(self, num_tokens: int) -> tuple[int, int]:
        """Height and width of a picture whose placeholder is as near as possible to `num_tokens`."""
        return _nearest_size(self, whole("num_tokens", num_tokens))

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        """Sizes among which `image_size_for_tokens` chooses."""
        raise self._lacks("image")

    def _lacks(self, modality: str) -> InputError:
        takes = ", ".join(sorted(self.modalities)) or "nothing but text"
        return InputError(f"{modality} for {self.name}", "the model does not take it", f"it takes {takes}")

    def _check_choice(self, key: str, allowed: tuple[object, ...]) -> None:
        value = getattr(self, key)
        if value not in allowed:
            raise InputError(f"{key} {value!r} of {self.name}", f"must be one of {', '.join(map(str, allowed))}")

    def _check_order(self, smaller: str, larger: str) -> None:
        low, high = getattr(self, smaller), getattr(self, larger)
        if low > high:
            raise InputError(f"{smaller} {low} of {self.name}", f"is over {larger} {high}")

    def _check_multiple(self, key: str, unit: int, why: str) -> None:
        value = getattr(self, key)
        if value % unit:
            raise InputError(f"{key} {value} of {self.name}", f"must be a multiple of {unit}, {why}")

    def _embedding_bytes(self, num_embeds: int) -> int:
        return num_embeds * self.hidden * ITEM_BYTES[self.embed_dtype]


@lru_cache(maxsize=8192)
def _nearest_size(family: BaseFamily, num_tokens: int) -> tuple[int, int]:
    def miss(size: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
        return abs(family.image(*size).num_tokens - num_tokens), abs(size[0] - size[1]), size

    return min(family.candidate_sizes(num_tokens), key=miss)


def _check_constant(name: str, key: str, kind: str, value: object, minimum: int) -> None:
    """Overrides come from scenario files: check them by the type that the record declares."""
    if kind == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
        raise InputError(f"{key} {value!r} of {name}", f"must be a whole number of at least {minimum}")
    if kind == "bool" and not isinstance(value, bool):
        raise InputError(f"{key} {value!r} of {name}", "must be true or false")


LARGEST = 1_000_000
"""Of a side, a number of frames, a duration: a larger one is a slip, and its fields would not fit in memory."""


def whole(what: str, value: int) -> int:
    """A whole number of at least 1 from a user's file, or `InputError`."""
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise InputError(f"{what} {value!r}", "must be a whole number of at least 1")
    if number > LARGEST:
        raise InputError(f"{what} {number}", f"must be at most {LARGEST:,}")
    return number


def above_zero(what: str, value: float) -> float:
    """A finite number above 0 from a user's file, or `InputError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise InputError(f"{what} {value!r}", "must be a finite number above 0")
    if value > LARGEST:
        raise InputError(f"{what} {value:g}", f"must be at most {LARGEST:,}")
    return float(value)


def may_be_zero(default: int) -> Any:
    """A constant of a checkpoint that may be 0; all others are at least 1."""
    return field(default=default, metadata={"minimum": 0})


def picture_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of a picture or frame, or `InputError`."""
    return whole("picture height", height), whole("picture width", width)


def sized(dtype: str, *shape: int, kind: FieldKind | None = None) -> Field:
    """A field of which only the size matters."""
    return Field(TensorHandle(dtype, shape), kind or BatchedKind())


def flat(dtype: str, *shape: int) -> Field:
    """A size-only field that is sliced along the first dimension of a tensor that all items of a batch share."""
    return Field(TensorHandle(dtype, shape), flat_kind(shape[0]))


def flat_kind(length: int) -> FlatKind:
    """The kind of a flat field in a batch of one item."""
    return FlatKind((((0, length, None),),))


def known(
    dtype: str, values: Iterable[float], *, shape: tuple[int, ...] | None = None, kind: FieldKind | None = None
) -> Field:
    """A small field with its values as raw little-endian bytes; kept on the CPU unless `kind` says otherwise."""
    numbers = tuple(values)
    code = {"int64": "q", "int32": "i", "float32": "f", "bool": "?"}[dtype]
    raw = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return Field(
        TensorHandle(dtype, (len(numbers),) if shape is None else shape, raw), kind or BatchedKind(keep_on_cpu=True)
    )
