"""The four tables of media on the wire: `features` of a GenerateRequest."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, model_validator

from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem, PlaceholderRange
from epdsim.core.legs import features_body
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import METADATA_READ, PLACEHOLDER_SENT, FeatureTables, check_tables
from epdsim.wire.base import WireModel, dialect_of, parse, unread
from epdsim.wire.codec import encode_blob
from epdsim.wire.decoding import LIMITS, Limits, decode_blob


class PlaceholderRangeInfo(WireModel):
    """Where one item stands in the prompt.

    Attributes:
        offset: First token.
        length: Tokens, at least one.
        is_embed: Per token whether an embedding goes there. No release to 0.33 sends or reads it (vLLM PR 54548); the ideal does.
    """

    offset: int = Field(ge=0)
    length: int = Field(gt=0)
    is_embed: list[bool] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_mask(cls, body: Any, info: ValidationInfo) -> Any:
        masked = PlaceholderRange(0, 1, b"\1")
        return body if dialect_of(info)[PLACEHOLDER_SENT](masked).is_embed else unread(body, "is_embed")

    @model_validator(mode="after")
    def _covers_the_span(self) -> PlaceholderRangeInfo:
        if self.is_embed is not None and len(self.is_embed) != self.length:
            raise ValueError(f"is_embed has {len(self.is_embed)} entries for {self.length} tokens")
        return self

    def range(self) -> PlaceholderRange:
        """As the core has it."""
        return PlaceholderRange(self.offset, self.length, None if self.is_embed is None else bytes(self.is_embed))


class MultiModalFeatures(WireModel):
    """Hashes, placeholders, payload and metadata of a request's media, each by modality, one slot per item.

    Attributes:
        mm_hashes: Content hash of each item.
        mm_placeholders: Where each item stands.
        kwargs_data: Base64 blob of each item's fields; null for an item that the worker's cache must hold.
        mm_metadata: Base64 blob of each item's light fields; null for an item without any.
    """

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRangeInfo]]
    kwargs_data: dict[str, list[str | None]] | None = None
    mm_metadata: dict[str, list[str | None]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_metadata(cls, body: Any, info: ValidationInfo) -> Any:
        return body if dialect_of(info)[METADATA_READ]({}) is not None else unread(body, "mm_metadata")

    @model_validator(mode="after")
    def _is_parallel(self) -> MultiModalFeatures:
        try:
            check_tables(self.tables())
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def tables(self) -> FeatureTables[str]:
        """The tables with blobs in their slots."""
        ranges = {modality: [one.range() for one in ranges] for modality, ranges in self.mm_placeholders.items()}
        return FeatureTables(self.mm_hashes, ranges, self.kwargs_data, self.mm_metadata)


def features_to_json(tables: FeatureTables[MediaItem]) -> dict[str, Any]:
    """Tables as the JSON object `features`, every item as its blob.

    Raises:
        InputError: A tensor has no bytes behind it.
    """
    return features_body(tables.convert(encode_blob))


def features_from_json(
    body: object, *, dialect: Dialect = IDEAL, limits: Limits = LIMITS, place: str = "features"
) -> FeatureTables[MediaItem]:
    """The way back from `features_to_json`: null slots, field order and bytes are as they were.

    Raises:
        InputError: With the place of what is wrong, for example `features.kwargs_data.image[0]: field 'pixel_values'`.
    """
    tables = parse(MultiModalFeatures, body, dialect).tables()
    return tables.convert(lambda blob, where: decode_blob(blob, f"{place}.{where}", limits))
