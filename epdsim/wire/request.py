"""The token-in, token-out request: what encode, prefill and decode are called with."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from epdsim.core.ec.gate import EC_PARAMS_READ, check_gate
from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, MediaItem
from epdsim.core.legs import Leg, leg_body
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import FeatureTables, check_spans, features_of
from epdsim.wire.base import Fault, OpenModel, WireModel, dialect_of, find_faults, parse, unread
from epdsim.wire.codec import encode_blob
from epdsim.wire.decoding import LIMITS, Limits, decode_blob
from epdsim.wire.features import MultiModalFeatures
from epdsim.wire.sampling import SamplingParams

OutputMode = Literal["tokens", "text"]

_SALT_LENGTH, _SALT_FORBIDDEN = 128, frozenset("@/\\\x00")
_INT64 = 2**63


class StreamOptions(OpenModel):
    """What a stream tells beside tokens."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ReasoningParserKwargs(WireModel):
    """Options of the reasoning parser; nothing else may be passed."""

    model_config = ConfigDict(extra="forbid")

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])


class ContentPart(WireModel):
    """Raw media that the worker fetches and processes itself.

    vLLM 0.32 drops a part of any other type in silence; `GenerateRequest.media_parts` refuses it.
    """

    type: Literal["image_url", "audio_url", "video_url"]
    url: str | None = None
    uuid: str | None = None


class GenerateRequest(WireModel):
    """A call of `/inference/v1/generate`, judged as the dialect judges: `parse(GenerateRequest, body, dialect)`.

    Attributes:
        token_ids: The prompt, placeholders expanded (collapsed when `content_parts` carry raw media).
        features: Media by tables; excludes `content_parts`.
        content_parts: Raw media.
        sampling_params: Required, though all its fields have defaults.
        kv_transfer_params: Hand-over of the KV cache; top level.
        ec_transfer_params: Hand-over of embeddings; top level. In `sampling_params.extra_args` it does not count.
    """

    request_id: str = ""
    token_ids: list[int] = Field(min_length=1)
    token_offsets: list[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: list[dict[str, Any]] | None = None
    sampling_params: SamplingParams
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: OutputMode = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = Field(default=0, ge=-_INT64, le=_INT64 - 1)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @field_validator("token_ids")
    @classmethod
    def _are_ids(cls, ids: list[int]) -> list[int]:
        if any(one < 0 for one in ids):
            raise ValueError("a token id is not negative")
        return ids

    @model_validator(mode="before")
    @classmethod
    def _read_ec_params(cls, body: Any, info: ValidationInfo) -> Any:
        return body if dialect_of(info)[EC_PARAMS_READ]({}) is not None else unread(body, "ec_transfer_params")

    @model_validator(mode="before")
    @classmethod
    def _is_safe_salt(cls, body: Any) -> Any:
        salt = cast("dict[str, Any]", body).get("cache_salt") if isinstance(body, dict) else None
        if salt is not None and (
            not isinstance(salt, str) or not 1 <= len(salt) <= _SALT_LENGTH or not _SALT_FORBIDDEN.isdisjoint(salt)
        ):
            raise ValueError(f"cache_salt is a text of 1 to {_SALT_LENGTH} characters without '@', '/', '\\' and NUL")
        return cast("Any", body)

    @model_validator(mode="after")
    def _is_sufficient(self, info: ValidationInfo) -> GenerateRequest:
        dialect = dialect_of(info)
        if self.content_parts and self.features:
            raise ValueError("content_parts and features exclude each other")
        if self.output_mode != "tokens" and not self.sampling_params.detokenize:
            raise ValueError(f"output_mode {self.output_mode!r} needs sampling_params.detokenize")
        if self.features is not None:
            tables = self.features.tables()
            try:
                check_gate(tables, self.ec_transfer_params, dialect)
                check_spans(tables, len(self.token_ids))
            except InputError as error:
                raise ValueError(str(error)) from None
        return self

    def media_parts(self) -> tuple[ContentPart, ...]:
        """The raw media.

        Raises:
            InputError: A part has a type that no worker resolves.
        """
        parts: list[ContentPart] = []
        for i, part in enumerate(self.content_parts or ()):
            try:
                parts.append(parse(ContentPart, part))
            except InputError as error:
                raise error.at(f"content_parts[{i}]") from None
        return tuple(parts)

    def media_tables(self, limits: Limits = LIMITS) -> FeatureTables[MediaItem] | None:
        """The tables with their blobs decoded.

        Raises:
            InputError: A blob is broken: path, field, and what is wrong with it.
        """
        if self.features is None:
            return None
        return self.features.tables().convert(lambda blob, place: decode_blob(blob, f"features.{place}", limits))

    def mm_features(self, dialect: Dialect = IDEAL, limits: Limits = LIMITS) -> tuple[MediaFeature, ...]:
        """The items in order of offset, payload and metadata merged, as the engine gets them."""
        tables = self.media_tables(limits)
        return () if tables is None else features_of(tables, dialect)


def validate_request(body: object, dialect: Dialect = IDEAL) -> GenerateRequest:
    """The request of a decoded JSON body.

    Args:
        body: Decoded JSON.
        dialect: Who judges. The ideal is stricter than a release: metadata-only items are checked by hash.

    Raises:
        InputError: With the path of the first fault.
    """
    return parse(GenerateRequest, body, dialect)


def request_faults(body: object, dialect: Dialect = IDEAL) -> tuple[Fault, ...]:
    """Why a body is refused; empty when it is accepted."""
    return find_faults(GenerateRequest, body, dialect)


def leg_to_json(leg: Leg) -> dict[str, Any]:
    """The JSON body of a leg, every item as its blob."""
    return leg_body(leg, encode_blob)
