"""Positions by the installed release's own model classes, without weights: those that need no token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from epdsim.core.items import MediaFeature
from epdsim.sut.vllm.models import model_module
from epdsim.sut.vllm.protocol import VllmProtocol, vllm_protocol
from epdsim.sut.vllm.release import load
from epdsim.sut.vllm.settings import StandIn

_MODELS = {
    "mrope-qwen2-vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration", {"tokens_per_second": 1.0}),
    "mrope-qwen2.5-vl": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", {"tokens_per_second": 2}),
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


@dataclass(frozen=True, slots=True)
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
            [1] * num_prompt_tokens, [self.protocol.feature(one) for one in features]
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
    model: Any = StandIn(config=StandIn(vision_config=vision))
    model.iter_mm_grid_thw = lambda features: kind.iter_mm_grid_thw(model, features)
    model.get_mrope_input_positions = lambda tokens, features: kind.get_mrope_input_positions(model, tokens, features)
    return model
