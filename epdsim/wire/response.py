"""What a generate call answers: at once, or as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from pydantic import NonNegativeInt, model_validator

from epdsim.core.errors import InputError
from epdsim.wire.base import OpenModel, WireModel, parse
from epdsim.wire.errors import ErrorResponse
from epdsim.wire.features import PlaceholderRangeInfo
from epdsim.wire.logprobs import ChatLogprobs, GenerateLogprobs
from epdsim.wire.request import OutputMode

KEEP_ALIVE = ": keep-alive\n\n"
"""A comment that holds an idle stream open."""

_DONE = "data: [DONE]\n\n"


class UsageInfo(OpenModel):
    """Tokens in and out."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> UsageInfo:
        """Usage with its total."""
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
        )


class WeightVersionSpan(WireModel):
    """Output tokens `[start, end)` that one version of the weights sampled."""

    version: str
    start: int
    end: int


class ChunkChoice(WireModel):
    """What a stream adds to one choice.

    Attributes:
        token_ids: New tokens.
        text: New text, in output mode `"text"` only.
        stop_reason: The stop text or token that ended it, if one did.
    """

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    logprobs: GenerateLogprobs | ChatLogprobs | None = None
    routed_experts: str | None = None
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[WeightVersionSpan] | None = None


class GenerateChoice(ChunkChoice):
    """One whole output."""

    finish_reason: str | None = "stop"
    token_ids: list[NonNegativeInt] | None = None  # type: ignore[assignment]


class GenerateChunk(WireModel):
    """One event of a stream. It carries no transfer parameters: a streamed encode or prefill hands nothing on."""

    request_id: str = ""
    output_mode: OutputMode = "tokens"
    choices: list[ChunkChoice]
    usage: UsageInfo | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    mm_placeholders: dict[str, list[PlaceholderRangeInfo]] | None = None
    metrics: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits_its_mode(self) -> GenerateChunk:
        _check_mode(self.output_mode, self.choices)
        return self


class GenerateResponse(WireModel):
    """The whole answer; `output_mode` is absent from servers that predate it and means tokens then.

    Attributes:
        kv_transfer_params: Where decode finds the KV cache: only of a prefill that was asked for it and ended by length or stop.
        ec_transfer_params: Where prefill finds the embeddings.
    """

    request_id: str = ""
    model: str | None = None
    created: int | None = None
    output_mode: OutputMode = "tokens"
    choices: list[GenerateChoice]
    usage: UsageInfo | None = None
    prompt_logprobs: list[dict[int, dict[str, Any]] | None] | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    mm_placeholders: dict[str, list[PlaceholderRangeInfo]] | None = None
    metrics: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits_its_mode(self) -> GenerateResponse:
        _check_mode(self.output_mode, self.choices)
        return self


def _check_mode(output_mode: OutputMode, choices: Iterable[ChunkChoice]) -> None:
    """Text mode has text and its log probabilities by text, tokens mode by id."""
    for one in choices:
        if output_mode == "text" and one.text is None:
            raise ValueError("every choice has text in output mode 'text'")
        is_by_text = isinstance(one.logprobs, ChatLogprobs)
        if one.logprobs is not None and one.logprobs.content and is_by_text is not (output_mode == "text"):
            wanted = "text" if output_mode == "text" else "id"
            raise ValueError(f"log probabilities are by {wanted} in output mode {output_mode!r}")


def write_event(body: GenerateChunk | ErrorResponse) -> str:
    """One event of a stream; an error after the headers is an event too, and the status stays 200."""
    return f"data: {json.dumps(body.body(), separators=(',', ':'))}\n\n"


def write_stream(chunks: Iterable[GenerateChunk | ErrorResponse]) -> Iterator[str]:
    """All events of a stream and its end; an error ends it early."""
    for chunk in chunks:
        yield write_event(chunk)
        if isinstance(chunk, ErrorResponse):
            break
    yield _DONE


def read_stream(text: Iterable[str]) -> Iterator[GenerateChunk | ErrorResponse]:
    """The events of a stream, however its text was cut into pieces.

    Raises:
        InputError: An event is no JSON or no chunk, or the stream ends without `[DONE]`.
    """
    for number, event in enumerate(_events(text)):
        if event == "[DONE]":
            return
        place = f"event {number} of the stream"
        try:
            body: object = json.loads(event)
        except ValueError as error:
            raise InputError(place, f"it is not JSON: {error}") from None
        is_error = isinstance(body, dict) and "error" in body
        try:
            yield parse(ErrorResponse if is_error else GenerateChunk, cast("object", body))
        except InputError as error:
            raise error.at(place) from None
    raise InputError("the stream", "it ends without [DONE]", "the server has died or was cut off")


def _events(text: Iterable[str]) -> Iterator[str]:
    """The data of each event; comments are skipped."""
    rest = ""
    for piece in text:
        *whole, rest = (rest + piece).split("\n\n")
        yield from (event.removeprefix("data: ") for event in whole if event.startswith("data: "))
