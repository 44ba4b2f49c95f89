"""Derender: generated tokens back to an OpenAI body, at once or chunk by chunk without state on the server.

In a stream the client carries `stream_state` from each answer into the next call. The functions here take the text of tokens from a
callable and know no parser of reasoning or tool calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from epdsim.core.errors import InputError
from epdsim.wire.base import WireModel
from epdsim.wire.logprobs import ChatLogprob, ChatLogprobs, ChatPositionLogprobs, GenerateLogprobs
from epdsim.wire.openai import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatMessage,
    TextChoice,
    TextCompletion,
)
from epdsim.wire.response import ChunkChoice, GenerateChunk, GenerateResponse, UsageInfo

MAX_WINDOW = 1024
"""Most token texts that a carried state may hold."""

_LEAST_LOGPROB = -9999.0

Detokenize = Callable[[Sequence[int]], str]
"""The text of tokens; with `detokenize(a + b) == detokenize(a) + detokenize(b)`, as byte fallback of real tokenizers has it not."""


class DerenderStreamState(WireModel):
    """What the client carries from chunk to chunk.

    Attributes:
        prev_tokens: Texts at the end of the output that the next decoding step still reads.
        prefix_offset: Where in them decoding starts.
        read_offset: Where the text ends that has been sent.
        role_sent: Whether the role has been sent.
        logprob_context_token_ids: The last tokens, for the text of split characters.
        logprob_text_offset: Characters sent.
        output_token_ids: All tokens, where a parser must replay them.
        output_chunk_lens: How they were chunked.
        tools_streamed: Whether a tool call has been sent.
        last_tool_call_ids: Ids given to tool calls.
    """

    prev_tokens: list[str] = Field(default_factory=list[str])
    prefix_offset: int = Field(default=0, ge=0)
    read_offset: int = Field(default=0, ge=0)
    role_sent: bool = False
    logprob_context_token_ids: list[int] = Field(default_factory=list[int], max_length=4)
    logprob_text_offset: int = Field(default=0, ge=0)
    output_token_ids: list[int] = Field(default_factory=list[int])
    output_chunk_lens: list[Annotated[int, Field(gt=0)]] = Field(default_factory=list[int])
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = Field(default_factory=list[str])

    @field_validator("prev_tokens")
    @classmethod
    def _is_short(cls, texts: list[str]) -> list[str]:
        if len(texts) > MAX_WINDOW:
            raise ValueError(f"prev_tokens has length {len(texts)}, the limit is {MAX_WINDOW}")
        return texts

    @model_validator(mode="after")
    def _adds_up(self) -> DerenderStreamState:
        if sum(self.output_chunk_lens) != len(self.output_token_ids):
            raise ValueError(f"output_chunk_lens add up to {sum(self.output_chunk_lens)}, not to the tokens carried")
        return self


class _Whole(WireModel):
    stream: Literal[False] = False
    model: str | None = None


class _Chunk(WireModel):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateChunk
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None

    @model_validator(mode="after")
    def _is_of_tokens(self) -> Self:
        _check_mode(self.generate_chunk)
        return self


class DerenderChatRequest(_Whole):
    """A whole answer to derender as a chat; only output mode `"tokens"` can be."""

    generate_response: GenerateResponse
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    chat_request: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_of_tokens(self) -> DerenderChatRequest:
        _check_mode(self.generate_response)
        return self


class DerenderCompletionRequest(_Whole):
    """Whole answers, one per prompt, to derender as one completion."""

    generate_responses: list[GenerateResponse]
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[NonNegativeInt] | None] | None = None
    completion_request: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_parallel(self) -> DerenderCompletionRequest:
        for one in self.generate_responses:
            _check_mode(one)
        for name, given in (("prompt_tokens", self.prompt_tokens), ("prompt_token_ids", self.prompt_token_ids)):
            if given is not None and len(given) != len(self.generate_responses):
                raise ValueError(f"{name} has length {len(given)} for {len(self.generate_responses)} responses")
        return self


def _check_mode(answer: GenerateResponse | GenerateChunk) -> None:
    if answer.output_mode != "tokens":
        raise ValueError("only answers in output mode 'tokens' can be derendered")


class DerenderChatStreamRequest(_Chunk):
    """One chunk of a stream to derender as a chat."""

    chat_request: dict[str, Any] | None = None


class DerenderCompletionStreamRequest(_Chunk):
    """One chunk of a stream to derender as a completion."""

    completion_request: dict[str, Any] | None = None


class DerenderChatStreamResponse(WireModel):
    """A chunk of a chat, and the state for the next call."""

    chunk: ChatCompletionChunk
    stream_state: DerenderStreamState


class DerenderCompletionStreamResponse(WireModel):
    """A chunk of a completion, and the state for the next call."""

    chunk: TextCompletion
    stream_state: DerenderStreamState


def derender_chat(request: DerenderChatRequest, detokenize: Detokenize, model: str) -> ChatCompletion:
    """The chat of a whole answer.

    Args:
        request: The answer; `prompt_tokens` counts into the usage, 0 when absent.
        detokenize: The text of tokens.
        model: Name for the answer when the request names none.
    """
    answer = request.generate_response
    choices = [
        ChatChoice(
            index=one.index,
            message=ChatMessage(role="assistant", content=detokenize(one.token_ids or [])),
            logprobs=_logprobs(one, detokenize),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        for one in answer.choices
    ]
    return ChatCompletion(
        id=answer.request_id,
        model=request.model or model,
        choices=choices,
        usage=UsageInfo.of(request.prompt_tokens or 0, _num_tokens(answer.choices)),
        kv_transfer_params=answer.kv_transfer_params,
    )


def derender_completion(request: DerenderCompletionRequest, detokenize: Detokenize, model: str) -> TextCompletion:
    """The completion of whole answers; choices are numbered over all prompts, KV parameters kept only when all agree.

    Raises:
        InputError: There is no answer.
    """
    if not request.generate_responses:
        raise InputError("generate_responses", "there is none", "send one answer per prompt")
    answers = request.generate_responses
    produced = [one for answer in answers for one in answer.choices]
    choices = [
        TextChoice(
            index=index,
            text=detokenize(one.token_ids or []),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        for index, one in enumerate(produced)
    ]
    agreed = all(one.kv_transfer_params == answers[0].kv_transfer_params for one in answers)
    return TextCompletion(
        id=answers[0].request_id,
        model=request.model or model,
        choices=choices,
        usage=UsageInfo.of(sum(request.prompt_tokens or ()), _num_tokens(produced)),
        kv_transfer_params=answers[0].kv_transfer_params if agreed else None,
    )


def derender_chat_chunk(
    request: DerenderChatStreamRequest, detokenize: Detokenize, model: str
) -> DerenderChatStreamResponse:
    """One chunk of a chat and the state to carry; the role goes with the first chunk that has a choice.

    Raises:
        InputError: The chunk has more than one choice: one state belongs to one output.
    """
    text, state = _advance(request.generate_chunk, request.stream_state, detokenize)
    choices = [
        ChatChunkChoice(
            index=one.index,
            delta=ChatMessage(role=None if state.role_sent else "assistant", content=text),
            logprobs=_logprobs(one, detokenize),
            finish_reason=one.finish_reason,
            stop_reason=one.stop_reason,
        )
        for one in request.generate_chunk.choices
    ]
    chunk = ChatCompletionChunk(
        id=request.generate_chunk.request_id,
        model=request.model or model,
        choices=choices,
        usage=request.generate_chunk.usage,
    )
    sent = state.role_sent or bool(choices)
    return DerenderChatStreamResponse(chunk=chunk, stream_state=state.model_copy(update={"role_sent": sent}))


def derender_completion_chunk(
    request: DerenderCompletionStreamRequest, detokenize: Detokenize, model: str
) -> DerenderCompletionStreamResponse:
    """One chunk of a completion and the state to carry; see `derender_chat_chunk`."""
    text, state = _advance(request.generate_chunk, request.stream_state, detokenize)
    choices = [
        TextChoice(index=one.index, text=text, finish_reason=one.finish_reason, stop_reason=one.stop_reason)
        for one in request.generate_chunk.choices
    ]
    chunk = TextCompletion(
        id=request.generate_chunk.request_id,
        model=request.model or model,
        choices=choices,
        usage=request.generate_chunk.usage,
    )
    return DerenderCompletionStreamResponse(chunk=chunk, stream_state=state)


def _advance(
    chunk: GenerateChunk, state: DerenderStreamState | None, detokenize: Detokenize
) -> tuple[str, DerenderStreamState]:
    if len(chunk.choices) > 1:
        raise InputError(f"a chunk with {len(chunk.choices)} choices", "one state belongs to one output")
    before = state or DerenderStreamState()
    token_ids = [token for one in chunk.choices for token in one.token_ids or ()]
    text = detokenize(token_ids)
    update = {
        "logprob_text_offset": before.logprob_text_offset + len(text),
        "logprob_context_token_ids": [*before.logprob_context_token_ids, *token_ids][-4:],
    }
    return text, before.model_copy(update=update)


def _num_tokens(choices: Sequence[ChunkChoice]) -> int:
    return sum(len(one.token_ids or ()) for one in choices)


def _logprobs(choice: ChunkChoice, detokenize: Detokenize) -> ChatLogprobs | None:
    """Log probabilities by text; none below the least that JSON clients are given."""
    if not isinstance(choice.logprobs, GenerateLogprobs) or choice.logprobs.content is None:
        return None

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        text = detokenize([token_id])
        # NaN is below nothing and above nothing: only what is surely above the least is kept.
        shown = max(_LEAST_LOGPROB, logprob)
        return {"token": text, "logprob": shown, "bytes": list(text.encode())}

    return ChatLogprobs(
        content=[
            ChatPositionLogprobs(
                **one(position.token_id, position.logprob),
                top_logprobs=[ChatLogprob(**one(top.token_id, top.logprob)) for top in position.top_logprobs],
            )
            for position in choice.logprobs.content
        ]
    )
