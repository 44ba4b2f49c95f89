"""The installed release's own functions of the protocol: render's extraction, the request model, the merge, the strip, its codec.

Items go over in the release's own blobs, which epdsim writes and reads to the byte.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pydantic

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, MediaItem, PlaceholderRange
from epdsim.core.slots import Rendered
from epdsim.sut.vllm.release import load
from epdsim.wire import decode_blob, encode_blob

_SCALE_OUT = "vllm.entrypoints.scale_out.token_in_token_out"
_NAMES = {
    f"{_SCALE_OUT}.mm_features": ("extract_mm_features", "mm_kwargs_from_features"),
    f"{_SCALE_OUT}.mm_serde": ("decode_mm_kwargs_item", "encode_mm_kwargs_item"),
    f"{_SCALE_OUT}.protocol": ("GenerateRequest", "MultiModalFeatures"),
    "vllm.multimodal.utils": ("strip_covered_mm_data",),
}


@cache
def _functions() -> SimpleNamespace | None:
    found = SimpleNamespace(release=load())
    for module, names in _NAMES.items():
        try:
            imported = importlib.import_module(module)
        except ImportError:
            return None
        for name in names:
            if not hasattr(imported, name):
                return None
            setattr(found, name, getattr(imported, name))
    return found


def vllm_protocol() -> VllmProtocol | None:
    """The installed release's functions; None when it lacks one of them (before 0.30)."""
    found = _functions()
    return None if found is None else VllmProtocol(found)


class VllmProtocol:
    """The protocol's functions as the installed release has them."""

    def __init__(self, functions: SimpleNamespace) -> None:
        self._its = functions

    def extract(self, rendered: Rendered, declared: Callable[[str], Collection[str]]) -> Mapping[str, Any] | None:
        """Render's tables."""
        if not rendered.mm_hashes:
            return None
        prompt = {
            "type": "multimodal",
            "mm_hashes": {modality: list(hashes) for modality, hashes in rendered.mm_hashes.items()},
            "mm_placeholders": {
                modality: [self._range(one) for one in ranges] for modality, ranges in rendered.mm_placeholders.items()
            },
            "mm_kwargs": {
                modality: [None if one is None else self._item(one) for one in items]
                for modality, items in rendered.mm_items.items()
            },
        }
        with _refusals():
            features = self._its.extract_mm_features(prompt, metadata_fields_for=declared)
        return {key: value for key, value in features.model_dump(mode="json").items() if value is not None}

    def validate(self, body: Mapping[str, Any]) -> None:
        """Judge a request."""
        with _refusals():
            self._its.GenerateRequest.model_validate(body)

    def merge(self, features: Mapping[str, Any]) -> Sequence[MediaFeature]:
        """Items of tables."""
        with _refusals():
            tables = self._its.MultiModalFeatures.model_validate(features)
        kwargs = self._its.mm_kwargs_from_features(tables)
        made = [
            MediaFeature(
                modality,
                mm_hash,
                PlaceholderRange(span.offset, span.length),
                None if kwargs[modality][index] is None else self._back(kwargs[modality][index]),
                mm_hash,
            )
            for modality, hashes in tables.mm_hashes.items()
            for index, (mm_hash, span) in enumerate(zip(hashes, tables.mm_placeholders[modality], strict=True))
        ]
        return sorted(made, key=lambda one: one.position.offset)

    def strip(
        self, features: Sequence[MediaFeature], num_computed_tokens: int, *, reads_fields: bool
    ) -> Sequence[MediaFeature]:
        """What to send at an admission."""
        given = [self.feature(one) for one in features]
        strip = self._its.strip_covered_mm_data
        flags = {name: reads_fields for name in ("uses_mrope",) if name in signature(strip).parameters}
        answer = strip(given, num_computed_tokens, **flags)
        if answer is given:
            return features
        return [
            before if after is its else replace(before, data=None if after.data is None else self._back(after.data))
            for before, its, after in zip(features, given, answer, strict=True)
        ]

    def encode(self, item: MediaItem) -> str:
        """The blob of an item."""
        return self._its.encode_mm_kwargs_item(self._item(item))

    def decode(self, blob: str) -> MediaItem:
        """The item of a blob."""
        return self._back(self._its.decode_mm_kwargs_item(blob))

    def _item(self, item: MediaItem) -> Any:
        return self._its.decode_mm_kwargs_item(encode_blob(item))

    def _back(self, item: Any) -> MediaItem:
        return decode_blob(self._its.encode_mm_kwargs_item(item))

    def _range(self, one: PlaceholderRange) -> Any:
        torch = self._its.release.torch
        mask = None if one.is_embed is None else torch.tensor(list(one.is_embed), dtype=torch.bool)
        return self._its.release.PlaceholderRange(offset=one.offset, length=one.length, is_embed=mask)

    def feature(self, one: MediaFeature) -> Any:
        """An item in the release's form."""
        return self._its.release.MultiModalFeatureSpec(
            data=None if one.data is None else self._item(one.data),
            modality=one.modality,
            identifier=one.identifier,
            mm_position=self._range(one.position),
        )


class _refusals:  # noqa: N801 - used as a function
    """Turns what the release refuses into an `InputError`, as its server turns it into a client error."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pydantic.ValidationError):
            told = "; ".join(str(one["msg"]).removeprefix("Value error, ") for one in error.errors())
            raise InputError("the release refuses", told) from None
