"""From the items of a request to spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from epdsim.core.errors import InputError
from epdsim.core.items import FieldData, MediaFeature, TensorHandle
from epdsim.core.positions.records import MediaSpan, PositionScheme
from epdsim.core.positions.rules import MISSING_FIELD
from epdsim.core.rules import IDEAL, Dialect

_Values = Mapping[str, Sequence[float]]


def spans_from_features(
    scheme: PositionScheme, features: Sequence[MediaFeature], dialect: Dialect = IDEAL
) -> tuple[MediaSpan, ...]:
    """The spans of a request's items in order of offset.

    A clip that carries its own sound (`use_audio_in_video`) takes in the sound item of the same range.

    Args:
        scheme: The model's.
        features: Its items; those of a scheme that reads nothing give no spans.
        dialect: The rule in force for absent fields.

    Raises:
        MissingFieldError: A field that positions read was stripped.
        InputError: A modality that the model does not take, or a field of the wrong shape.
    """
    if scheme.place is None:
        return ()
    spans: list[MediaSpan] = []
    with_sound: list[int] = []
    for feature in sorted(features, key=lambda one: one.position.offset):
        if feature.modality not in scheme.fields:
            takes = ", ".join(scheme.fields)
            raise InputError(f"{feature.modality} {feature.identifier!r}", f"{scheme.name!r} takes only {takes}")
        values: dict[str, Sequence[float]] = {}
        for name in scheme.fields[feature.modality]:
            read = _read(scheme, feature, name, dialect)
            if read is None:
                return ()
            values[name] = read
        if any(values.get("use_audio_in_video", ())):
            with_sound.append(len(spans))
        spans.append(_span(feature, values))
    return _take_in_sound(spans, with_sound) if with_sound else tuple(spans)


def _read(scheme: PositionScheme, feature: MediaFeature, name: str, dialect: Dialect) -> Sequence[float] | None:
    there = None if feature.data is None else feature.data.fields.get(name)
    return (
        dialect[MISSING_FIELD](scheme, feature, name)
        if there is None or there.data is None
        else list(_numbers(there.data))
    )


def _numbers(data: FieldData) -> Iterator[float]:
    if isinstance(data, TensorHandle):
        yield from data.flat_values()
    elif isinstance(data, tuple):
        for part in data:
            yield from _numbers(part)
    elif data is not None:
        yield data


def _span(feature: MediaFeature, values: _Values) -> MediaSpan:
    span = MediaSpan(feature.modality, feature.position)
    for name, numbers in values.items():
        if name.endswith("_grid_thw"):
            grid = tuple(int(number) for number in numbers)
            if len(grid) != 3 or min(grid) < 1:
                raise _malformed(feature, name, numbers, "three numbers of at least 1")
            span = replace(span, grid=grid)
        elif name == "second_per_grid_ts":
            if len(numbers) != 1 or not 0 <= numbers[0] < float("inf"):
                raise _malformed(feature, name, numbers, "one number of seconds")
            span = replace(span, seconds_per_grid=float(numbers[0]))
        elif name == "tgt_sizes":
            sides = [int(number) for number in numbers]
            if len(sides) % 2 or min(sides, default=0) < 1:
                raise _malformed(feature, name, numbers, "pairs of rows and columns")
            span = replace(span, slice_sizes=tuple(zip(sides[::2], sides[1::2], strict=True)))
    return span


def _malformed(feature: MediaFeature, name: str, numbers: Sequence[float], expected: str) -> InputError:
    return InputError(f"{name} {list(numbers)} of {feature.modality} {feature.identifier!r}", f"must be {expected}")


def _take_in_sound(spans: Sequence[MediaSpan], with_sound: Sequence[int]) -> tuple[MediaSpan, ...]:
    """Move the masks of sounds into the clips that they belong to."""
    taken = list(spans)
    for clip in with_sound:
        place = (spans[clip].position.offset, spans[clip].position.end)
        sounds = [
            number
            for number, one in enumerate(taken)
            if one.modality == "audio" and (one.position.offset, one.position.end) == place
        ]
        mask = taken[sounds[0]].position.is_embed if sounds else None
        if mask is None:
            raise InputError(f"{spans[clip]} carries its own sound", "no masked audio item has the same range")
        taken[clip] = replace(spans[clip], audio_embed=mask)
    return tuple(
        one
        for one in taken
        if one.modality != "audio" or all(one.position.offset != spans[clip].position.offset for clip in with_sound)
    )
