"""Log probabilities of output tokens: by id, and by text as OpenAI has them."""

from __future__ import annotations

from pydantic import Field

from epdsim.wire.base import OpenModel, WireModel


class TokenLogprob(WireModel):
    """One candidate, by id: a generate server may have no tokenizer."""

    token_id: int
    logprob: float
    rank: int | None = None


class PositionLogprobs(TokenLogprob):
    """The sampled token of one position and the candidates beside it."""

    top_logprobs: list[TokenLogprob] = Field(default_factory=list[TokenLogprob])


class GenerateLogprobs(WireModel):
    """Log probabilities of one choice, one entry per token."""

    content: list[PositionLogprobs] | None = None


class ChatLogprob(OpenModel):
    """One candidate, by text."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatPositionLogprobs(ChatLogprob):
    """The sampled token of one position and the candidates beside it."""

    top_logprobs: list[ChatLogprob] = Field(default_factory=list[ChatLogprob])


class ChatLogprobs(OpenModel):
    """Log probabilities of one choice."""

    content: list[ChatPositionLogprobs] | None = None
