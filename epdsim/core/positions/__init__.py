"""Positions of tokens: what rotary embeddings turn by, from a prompt's length and the spans of its media alone.

A scheme numbers text 0, 1, 2, ... in every dimension. Media tokens take ids on a grid, after which text goes on one past the
highest. No token ids are needed, so a worker that holds the spans' few metadata numbers can compute positions of any chunk, after
any preemption, whether or not it ever held the payloads.

    spans = spans_from_features(QWEN2_VL, request.mm_features)
    layout = lay_out(QWEN2_VL, request.prompt.num_tokens, spans)
    layout.columns(start, end), layout.decode_delta
"""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.core.positions.layout import LayoutBuilder, PositionLayout, Segment
from epdsim.core.positions.reading import spans_from_features
from epdsim.core.positions.records import MediaSpan, MissingFieldError, PositionScheme
from epdsim.core.positions.rules import (
    ADVANCE,
    MISSING_FIELD,
    TIME_INDEX,
    TRANSFORMERS_5,
    VLLM_0_32,
)
from epdsim.core.positions.schemes import (
    HUNYUAN_VL,
    MINICPM_V_4_7,
    ONE_D,
    QWEN2_5_OMNI,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_OMNI,
    QWEN3_VL,
    position_scheme,
    position_schemes,
)
from epdsim.core.rules import IDEAL, Dialect

__all__ = [
    "ADVANCE",
    "HUNYUAN_VL",
    "MINICPM_V_4_7",
    "MISSING_FIELD",
    "ONE_D",
    "QWEN2_5_OMNI",
    "QWEN2_5_VL",
    "QWEN2_VL",
    "QWEN3_OMNI",
    "QWEN3_VL",
    "TIME_INDEX",
    "TRANSFORMERS_5",
    "VLLM_0_32",
    "MediaSpan",
    "MissingFieldError",
    "PositionLayout",
    "PositionScheme",
    "Segment",
    "decode_delta",
    "lay_out",
    "position_scheme",
    "position_schemes",
    "positions",
    "spans_from_features",
]


def lay_out(
    scheme: PositionScheme, num_prompt_tokens: int, spans: Sequence[MediaSpan], dialect: Dialect = IDEAL
) -> PositionLayout:
    """Positions of a whole request, to be asked for any chunk of it.

    Args:
        scheme: The model's.
        num_prompt_tokens: Tokens of the prompt, placeholders included.
        spans: Its media in any order.
        dialect: The rules in force.

    Raises:
        InputError: A span lies outside the prompt, overlaps another, or holds another number of tokens than its grid.
    """
    builder = LayoutBuilder(scheme.num_dims)
    end = 0
    for ordinal, span in enumerate(sorted(spans, key=lambda one: one.position.offset)):
        if scheme.place is None:
            break
        if not end <= span.position.offset <= span.position.end <= num_prompt_tokens:
            raise InputError(
                f"{span}", f"must lie in the {num_prompt_tokens} tokens of the prompt, past token {end - 1}"
            )
        scheme.place(builder, scheme, span, ordinal, dialect)
        end = span.position.end
    return builder.finish(num_prompt_tokens)


def positions(
    scheme: PositionScheme,
    num_prompt_tokens: int,
    spans: Sequence[MediaSpan],
    start: int = 0,
    end: int | None = None,
    *,
    dialect: Dialect = IDEAL,
) -> tuple[list[int], ...]:
    """Positions of tokens `[start, end)`, one list for each dimension; beyond the prompt of generated tokens."""
    return lay_out(scheme, num_prompt_tokens, spans, dialect).columns(start, end)


def decode_delta(
    scheme: PositionScheme, num_prompt_tokens: int, spans: Sequence[MediaSpan], dialect: Dialect = IDEAL
) -> int:
    """What the index of a generated token lacks to its position: `position = index + delta` in every dimension."""
    return lay_out(scheme, num_prompt_tokens, spans, dialect).decode_delta
