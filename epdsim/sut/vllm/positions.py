"""Positions by the installed release's own model classes, without weights: those that need no token ids but markers of frames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import getattr_static
from typing import Any

from epdsim.core.items import MediaFeature
from epdsim.core.records import record
from epdsim.sut.vllm.models import model_module
from epdsim.sut.vllm.protocol import VllmProtocol, vllm_protocol
from epdsim.sut.vllm.release import load
from epdsim.sut.vllm.settings import StandIn

_MODELS = {
    "mrope-qwen2-vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration", {"tokens_per_second": 1.0}),
    "mrope-qwen2.5-vl": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"tokens_per_second": 2}),
    "mrope-qwen3-vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration", {}),
}
"""Module and class by scheme, and the constants of published checkpoints beside the merge size."""


def vllm_positions() -> VllmPositions | None:
    """The installed release's positions; None when it lacks the functions that items go over by (before 0.30), or a model."""
    protocol = vllm_protocol()
    try:
        for scheme in _MODELS:
            _model(scheme)
    except (ImportError, AttributeError):
        return None
    return None if protocol is None else VllmPositions(protocol)


@record
class VllmPositions:
    """Positions as the release's model classes compute them of the items that a worker holds.

    Attributes:
        protocol: Brings items into the release's form.
    """

    protocol: VllmProtocol

    def knows(self, scheme: str) -> bool:
        """Whether it is a scheme whose class is driven here."""
        return scheme in _MODELS

    def columns(
        self, scheme: str, num_prompt_tokens: int, features: Sequence[MediaFeature], start: int, end: int
    ) -> tuple[Sequence[Sequence[int]], int]:
        """Positions and delta; beyond the prompt as its runners count on."""
        found, delta = _model(scheme).get_mrope_input_positions(
            _tokens(num_prompt_tokens, features), [self.protocol.feature(one) for one in features]
        )
        generated = load().torch.arange(num_prompt_tokens, max(end, num_prompt_tokens)) + delta
        whole = [[*column.tolist(), *generated.tolist()] for column in found]
        return [column[start:end] for column in whole], delta

    def strip(self, scheme: str, features: Sequence[MediaFeature], num_computed_tokens: int) -> Sequence[MediaFeature]:
        """What workers are sent."""
        del scheme
        return self.protocol.strip(features, num_computed_tokens, reads_fields=True)


@cache
def _model(scheme: str) -> Any:
    """What stands for a model: its class's methods over a configuration."""
    module, name, constants = _MODELS[scheme]
    kind = getattr(model_module(module), name)
    vision = StandIn(spatial_merge_size=2, **constants)
    ids = {"video_token_id": _FRAME, "vision_start_token_id": _BEGIN, "vision_end_token_id": _END}
    return _Unbuilt(kind, config=StandIn(vision_config=vision, **ids))


class _Unbuilt(StandIn):
    """What was given, and beside it the methods of a class that was never built."""

    def __init__(self, kind: type, **attributes: object) -> None:
        super().__init__(**attributes)
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr_static(self._kind, name).__get__(self, self._kind)


_TEXT, _FRAME, _BEGIN, _END = 1, 3, 4, 5


def _tokens(num_prompt_tokens: int, features: Sequence[MediaFeature]) -> list[int]:
    """A prompt in which the frames of clips stand between markers: Qwen3-VL finds them by token ids."""
    tokens = [_TEXT] * num_prompt_tokens
    for one in features:
        mask, offset = one.position.is_embed, one.position.offset
        if one.modality != "video" or mask is None:
            continue
        for place, bit in enumerate(mask):
            if bit:
                tokens[offset + place] = _FRAME
            elif place and mask[place - 1]:
                tokens[offset + place] = _END
            elif mask[place + 1 : place + 2] == b"\1":
                tokens[offset + place] = _BEGIN
    return tokens
