"""Sampling parameters as vLLM 0.32 takes them on the wire, with what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

from pydantic import Field, StrictInt, model_validator

from epdsim.wire.base import WireModel

MAX_SEQUENCES = 16_384
"""Most parallel samples of one request unless the server says otherwise."""

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1


class StructuredOutputs(WireModel):
    """A constraint on the output; exactly one kind is given."""

    json_schema: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    @model_validator(mode="after")
    def _is_one_kind(self) -> StructuredOutputs:
        kinds = (self.json_schema, self.regex, self.choice, self.grammar, self.json_object, self.structural_tag)
        given = sum(kind is not None for kind in kinds)
        if given != 1:
            raise ValueError(f"one kind of structured output is needed, {given} are given")
        return self


class RepetitionDetection(WireModel):
    """When to end an output that repeats itself; a maximum of 0 switches it off."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    @model_validator(mode="after")
    def _is_consistent(self) -> RepetitionDetection:
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValueError("pattern sizes are not negative, and the smallest is not above the largest")
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise ValueError("a repetition counts from 2 on: min_count is too small")
        return self


class SamplingParams(WireModel):
    """How to sample, with the release's defaults.

    `model_fields_set` tells what the client gave: a server fills in the remaining context for an absent `max_tokens`, not the 16
    that stands here.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[list[StrictInt]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Literal[0, 1, 2] = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None

    @model_validator(mode="after")
    def _is_within_bounds(self) -> SamplingParams:
        for name, holds, rule in _BOUNDS:
            if not holds(self):
                raise ValueError(f"{name} = {getattr(self, name)!r}: {rule}")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken; a temperature near 0 is raised to 0.01 and is not greedy."""
        return self.temperature == 0.0


def _is_log_count(count: int | None) -> bool:
    return count is None or count >= -1


def _fits_in_64_bits(extra_args: dict[str, Any] | None) -> bool:
    return all(_INT64_MIN <= one <= _UINT64_MAX for one in _integers(extra_args))


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            yield from _integers(key)
            yield from _integers(part)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from _integers(part)


_BOUNDS: tuple[tuple[str, Callable[[SamplingParams], bool], str], ...] = (
    (
        "thinking_token_budget",
        lambda p: p.thinking_token_budget is None or p.thinking_token_budget >= -1,
        "not negative, or -1 for no limit",
    ),
    ("n", lambda p: 1 <= p.n <= MAX_SEQUENCES, f"from 1 to {MAX_SEQUENCES}"),
    ("extra_args", lambda p: _fits_in_64_bits(p.extra_args), "its integers fit in 64 bits"),
    ("presence_penalty", lambda p: -2.0 <= p.presence_penalty <= 2.0, "from -2 to 2"),
    ("frequency_penalty", lambda p: -2.0 <= p.frequency_penalty <= 2.0, "from -2 to 2"),
    ("repetition_penalty", lambda p: 0.0 < p.repetition_penalty < math.inf, "finite and above 0"),
    ("temperature", lambda p: 0.0 <= p.temperature <= 2.0, "from 0 to 2"),
    ("top_p", lambda p: 0.0 < p.top_p <= 1.0, "above 0, at most 1"),
    ("top_k", lambda p: p.top_k >= -1, "-1 or 0 for all tokens, else at least 1"),
    ("min_p", lambda p: 0.0 <= p.min_p <= 1.0, "from 0 to 1"),
    ("max_tokens", lambda p: p.max_tokens is None or p.max_tokens >= 1, "at least 1"),
    ("min_tokens", lambda p: p.min_tokens >= 0, "not negative"),
    ("min_tokens", lambda p: p.max_tokens is None or p.min_tokens <= p.max_tokens, "not above max_tokens"),
    ("stream_interval", lambda p: p.stream_interval is None or p.stream_interval >= 1, "at least 1"),
    ("logprobs", lambda p: _is_log_count(p.logprobs), "not negative, or -1 for all"),
    ("prompt_logprobs", lambda p: _is_log_count(p.prompt_logprobs), "not negative, or -1 for all"),
    ("stop", lambda p: p.stop is None or "" not in ([p.stop] if isinstance(p.stop, str) else p.stop), "no empty text"),
    ("stop", lambda p: p.detokenize or not p.stop, "stop texts need detokenize"),
    ("bad_words", lambda p: "" not in (p.bad_words or ()), "no empty text"),
    ("n", lambda p: not p.is_greedy or p.n == 1, "greedy sampling gives one output"),
)
"""What is checked, in the release's order: field, predicate, rule."""
