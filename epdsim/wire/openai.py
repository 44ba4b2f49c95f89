"""OpenAI bodies as derender answers with them: chats and completions, whole and in chunks."""

from __future__ import annotations

from typing import Any, Literal

from epdsim.wire.base import OpenModel
from epdsim.wire.logprobs import ChatLogprobs
from epdsim.wire.response import UsageInfo


class ChatMessage(OpenModel):
    """What the assistant said, or in a chunk what it adds."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(OpenModel):
    """One whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None


class ChatChunkChoice(OpenModel):
    """What a chunk adds to one answer."""

    index: int
    delta: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletion(OpenModel):
    """Answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int = 0
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class ChatCompletionChunk(OpenModel):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = 0
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageInfo | None = None


class TextChoice(OpenModel):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class TextCompletion(OpenModel):
    """Answer of a completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int = 0
    model: str
    choices: list[TextChoice]
    usage: UsageInfo | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
