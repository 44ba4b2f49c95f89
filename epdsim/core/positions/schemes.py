"""The schemes of models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from epdsim.core.errors import InputError
from epdsim.core.positions.canvas import place_canvas
from epdsim.core.positions.placement import (
    place_frames,
    place_grid,
    place_indexed,
    place_omni,
    place_omni_shared_marks,
)
from epdsim.core.positions.records import PositionScheme

_GRIDS: Mapping[str, tuple[str, ...]] = MappingProxyType({"image": ("image_grid_thw",), "video": ("video_grid_thw",)})
_TIMED_GRIDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**_GRIDS, "video": ("video_grid_thw", "second_per_grid_ts")}
)
_OMNI: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**_GRIDS, "video": ("video_grid_thw", "second_per_grid_ts", "use_audio_in_video"), "audio": ()}
)

ONE_D = PositionScheme("1d", 1)
"""One id a token; media count as text."""

QWEN2_VL = PositionScheme("mrope-qwen2-vl", 3, place_grid, _GRIDS)
"""Qwen2-VL, arXiv 2409.12191."""

QWEN2_5_VL = PositionScheme("mrope-qwen2.5-vl", 3, place_grid, _TIMED_GRIDS, tokens_per_second=2.0)
"""Qwen2.5-VL, arXiv 2502.13923: temporal ids tell seconds; the published checkpoints set 2 a second."""

QWEN3_VL = PositionScheme("mrope-qwen3-vl", 3, place_frames, _GRIDS)
"""Qwen3-VL, arXiv 2511.21631: a timestamp before each frame tells the time."""

QWEN2_5_OMNI = PositionScheme("mrope-qwen2.5-omni", 3, place_omni_shared_marks, _OMNI, tokens_per_second=25.0)
"""Qwen2.5-Omni, arXiv 2503.20215: 25 positions a second, which is also the rate of its audio tokens."""

QWEN3_OMNI = PositionScheme("mrope-qwen3-omni", 3, place_omni, _OMNI, tokens_per_second=13.0)
"""Qwen3-Omni, arXiv 2509.17765: 13 positions a second."""

HUNYUAN_VL = PositionScheme("xdrope-hunyuan-vl", 4, place_indexed, MappingProxyType({"image": ("image_grid_thw",)}))
"""HunYuan-VL: sequence index, column, row, picture number; transformers PR 46417, vLLM PR 53456."""

MINICPM_V_4_7 = PositionScheme("mrope-minicpm-v-4.7", 3, place_canvas, MappingProxyType({"image": ("tgt_sizes",)}))
"""MiniCPM-V 4.7 with the canvas mode, pictures only."""

_SCHEMES: Mapping[str, PositionScheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            ONE_D,
            QWEN2_VL,
            QWEN2_5_VL,
            QWEN3_VL,
            QWEN2_5_OMNI,
            QWEN3_OMNI,
            HUNYUAN_VL,
            MINICPM_V_4_7,
        )
    }
)


def position_scheme(name: str) -> PositionScheme:
    """The scheme of that name.

    Raises:
        InputError: There is none.
    """
    if name not in _SCHEMES:
        raise InputError(f"position scheme {name!r}", "is not known", f"the schemes are {', '.join(_SCHEMES)}")
    return _SCHEMES[name]


def position_schemes() -> tuple[PositionScheme, ...]:
    """All schemes."""
    return tuple(_SCHEMES.values())
