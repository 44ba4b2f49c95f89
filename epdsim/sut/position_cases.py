"""Cases of positions: a prompt with media, and the ways in which it comes to be computed."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle

_CODES = {"second_per_grid_ts": ("float32", "f"), "use_audio_in_video": ("bool", "?")}


class PositionItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item.

    Attributes:
        offset: Of its first token.
        is_embed: Where in it media tokens are; None for everywhere.
        fields: Values of the fields that positions read, by name.
    """

    modality: str
    offset: int
    length: int
    is_embed: list[int] | None = None
    fields: dict[str, list[float]] = {}


class PositionCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="positions"):
    """A prompt whose positions are asked for.

    Attributes:
        scheme: Name of the position scheme of the model.
        num_generated: Tokens behind the prompt.
        cuts: Where chunks begin.
        num_computed: Tokens of a prefix hit, with which its items are stripped.
        turns: Where the first turns of a session end: beginnings of the prompt that do not end within an item.
    """

    scheme: str
    num_prompt_tokens: int
    items: list[PositionItem]
    num_generated: int = 0
    cuts: list[int] = []
    num_computed: int = 0
    turns: list[int] = []


def position_features(items: Sequence[PositionItem]) -> list[MediaFeature]:
    """The items with a payload beside the fields that positions read."""
    return [
        MediaFeature(
            one.modality,
            f"m{number}",
            PlaceholderRange(one.offset, one.length, None if one.is_embed is None else bytes(one.is_embed)),
            MediaItem({"pixel_values": _PIXELS, **{name: _field(name, values) for name, values in one.fields.items()}}),
        )
        for number, one in enumerate(items)
    ]


def _field(name: str, values: Sequence[float]) -> Field:
    dtype, code = _CODES.get(name, ("int64", "q"))
    numbers = [float(one) if code == "f" else bool(one) if code == "?" else int(one) for one in values]
    data = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return Field(TensorHandle(dtype, (len(numbers),), data), BatchedKind(keep_on_cpu=True))


_PIXELS = Field(TensorHandle("bfloat16", (2, 2), bytes(8)), BatchedKind())
