"""Which fields of media travel as metadata, by the installed release's own processors, without checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from epdsim.media import family
from epdsim.sut.family_cases import MediaSize
from epdsim.sut.vllm.models import model_module
from epdsim.sut.vllm.protocol import vllm_protocol
from epdsim.sut.vllm.settings import StandIn

_NOTHING_DECLARED = ""
_PROCESSORS = {
    "QwenVL": ("qwen2_vl", "Qwen2VLMultiModalProcessor", "Qwen2VLMultiModalDataParser"),
    "Qwen25VL": ("qwen2_5_vl", "Qwen2_5_VLMultiModalProcessor", "qwen2_vl.Qwen2VLMultiModalDataParser"),
    "Qwen3VL": ("qwen3_vl", "Qwen3VLMultiModalProcessor", "Qwen3VLMultiModalDataParser"),
    "Qwen25Omni": (
        "qwen2_5_omni_thinker",
        "Qwen2_5OmniThinkerMultiModalProcessor",
        "Qwen2_5OmniThinkerMultiModalDataParser",
    ),
    "Qwen3Omni": (
        "qwen3_omni_moe_thinker",
        "Qwen3OmniMoeThinkerMultiModalProcessor",
        "Qwen3OmniMoeThinkerMultiModalDataParser",
    ),
    "Gemma3": ("gemma3_mm", "Gemma3MultiModalProcessor", _NOTHING_DECLARED),
    "InternVL": ("internvl", "InternVLMultiModalProcessor", _NOTHING_DECLARED),
    "Llama4": ("mllama4", "Mllama4MultiModalProcessor", _NOTHING_DECLARED),
    "Llava": ("llava", "LlavaMultiModalProcessor", _NOTHING_DECLARED),
    "Pixtral": ("pixtral", "PixtralMultiModalProcessor", _NOTHING_DECLARED),
    "Whisper": ("whisper", "WhisperMultiModalProcessor", _NOTHING_DECLARED),
    "Qwen2Audio": ("qwen2_audio", "Qwen2AudioMultiModalProcessor", "Qwen2AudioMultiModalDataParser"),
}
"""Module, processor and data parser by kind of checkpoint; without torchvision Gemma 4's module does not load."""


def vllm_media() -> VllmMedia | None:
    """The installed release's media; None when it sends no metadata (before 0.30)."""
    return None if vllm_protocol() is None else VllmMedia()


class VllmMedia:
    """What the release's processors keep on the CPU and its data parsers declare."""

    def metadata_fields(self, name: str, size: MediaSize) -> Collection[str] | None:
        """Names of fields."""
        found = _processor(type(family(name)).__name__)
        if found is None:
            return None
        processor, parser = found
        kept = {
            field
            for field, config in processor._get_mm_fields_config({}, {}).items()  # noqa: SLF001 - there is no public way
            if config.modality == size.modality and config.field.keep_on_cpu
        }
        return kept if parser is None else kept | parser.placeholder_metadata_fields(size.modality)


@cache
def _processor(kind: str) -> tuple[Any, Any] | None:
    """What stands for a processor, and the class of the data parser; None where the release or a library beside it lacks one."""
    if kind not in _PROCESSORS:
        return None
    module, name, parser = _PROCESSORS[kind]
    *elsewhere, parser = parser.split(".")
    try:
        processor = object.__new__(getattr(model_module(module), name))
        parses = getattr(model_module(*elsewhere or [module]), parser) if parser else None
    except (ImportError, AttributeError):
        return None
    vision = StandIn(spatial_merge_size=2)
    processor.info = StandIn(  # of which some ask whether the tokenizer has a token for clips
        get_hf_config=lambda: StandIn(vision_config=vision), ctx_video_token=True, image_token_id=1
    )
    return processor, parses
