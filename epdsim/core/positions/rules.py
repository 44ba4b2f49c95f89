"""The rules of positions that a release or a defect changes, and the entries of releases that differ from the ideal."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from epdsim.core.items import MediaFeature
from epdsim.core.positions.records import PositionScheme, missing_field
from epdsim.core.rules import Replacement, Rule


def _past_highest(extents: tuple[int, int, int]) -> int:
    return max(extents)


def _past_spatial(extents: tuple[int, int, int]) -> int:
    return max(extents[1:])


def _exact_time(num_steps: int, seconds_per_grid: float, tokens_per_second: float) -> list[int]:
    interval = seconds_per_grid * tokens_per_second
    return [int(step * interval) for step in range(num_steps)]


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _float32_time(num_steps: int, seconds_per_grid: float, tokens_per_second: float) -> list[int]:
    interval = _float32(tokens_per_second * _float32(seconds_per_grid))
    return [int(_float32(step * interval)) for step in range(num_steps)]


def _refuse(scheme: PositionScheme, feature: MediaFeature, name: str) -> Sequence[float] | None:
    raise missing_field(scheme, feature, name)


def _assume(scheme: PositionScheme, feature: MediaFeature, name: str) -> Sequence[float] | None:
    if name == "tgt_sizes":
        return None
    if name == "second_per_grid_ts":
        return (2.0,) if scheme.name == "mrope-qwen3-omni" else (1.0,)
    if name == "use_audio_in_video":
        return (0,)
    raise missing_field(scheme, feature, name)


ADVANCE = Rule(
    "positions.advance",
    "What follows a picture or clip starts one past the highest position that it took in any dimension.",
    source="Qwen2-VL report, arXiv 2409.12191; vLLM 0.32; transformers 5.0",
    ideal=_past_highest,
)
"""From a span's extents (temporal, rows, columns) to the advance of the base."""

TIME_INDEX = Rule(
    "positions.time_index",
    "Temporal patch i of a clip stands floor(i x seconds_per_grid x tokens_per_second) after its first.",
    source="Qwen2.5-VL report, arXiv 2502.13923; vLLM 0.32",
    ideal=_exact_time,
)
"""From the number of temporal patches, seconds between them and positions a second to their temporal ids."""

MISSING_FIELD = Rule(
    "positions.missing_field",
    "A field that positions read and that did not arrive is an error that names it, never another layout.",
    source="smg PR 2366; MiniCPM-V 4.7 in vLLM 0.32",
    ideal=_refuse,
)
"""From scheme, feature and field name to the values to assume; None lays the whole prompt as text."""

TRANSFORMERS_5: Mapping[str, Replacement] = MappingProxyType(
    {
        ADVANCE.name: Replacement(
            _past_spatial,
            "since `get_rope_index` takes mm_token_type_ids (5.24 looked at), rows and columns alone move the base, so what "
            "follows a clip with more temporal than spatial positions takes ids that the clip has used",
        ),
        TIME_INDEX.name: Replacement(_float32_time, "transformers multiplies in float32 and rounds twice"),
    }
)
"""`get_rope_index` of Qwen2-VL, Qwen2.5-VL and Qwen3-VL as released; used by the comparison with it."""

VLLM_0_32: Mapping[str, Replacement] = MappingProxyType(
    {
        MISSING_FIELD.name: Replacement(
            _assume, "absent seconds count as 1 (2 for Qwen3-Omni), absent slice sizes give 1-D ids"
        ),
    }
)
"""What vLLM 0.32 does where it differs from the ideal."""
