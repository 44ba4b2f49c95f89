"""The register of checkpoints: `family("qwen3-vl-8b")` and what it answers.

Every checkpoint is a record of constants; an override replaces some of them, for example
`family("gemma-4-31b", max_soft_tokens=560)`.

Sources of the constants: widths (`hidden`, which is the width of one embedding in the language model) and the number of deepstack
levels are those of the published `config.json` of each checkpoint, pixel limits those of its `preprocessor_config.json` and
`video_preprocessor_config.json` (Qwen3-VL issue 1836 quotes the former); class defaults of transformers 5.x where a checkpoint
says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any

from epdsim.core.errors import InputError
from epdsim.core.rules import Dialect
from epdsim.core.slots import MASK_KEPT
from epdsim.media.base import BaseFamily, Family, RenderedMedia

__all__ = ["Family", "RenderedMedia", "families", "family", "family_in"]


def _record(place: str, **constants: Any) -> BaseFamily:
    """A checkpoint of a class of this room, whose module is imported with the first: most runs meet one."""
    return resolve_name(f"epdsim.media.{place}")(**constants)


_CHECKPOINTS: Mapping[str, Callable[..., BaseFamily]] = MappingProxyType(
    {
        "qwen2-vl-2b": partial(_record, "qwen_vl:QwenVL", hidden=1536),
        "qwen2-vl-7b": partial(_record, "qwen_vl:QwenVL", hidden=3584),
        "qwen2-vl-72b": partial(_record, "qwen_vl:QwenVL", hidden=8192),
        "qwen2.5-vl-3b": partial(_record, "qwen_vl:Qwen25VL", hidden=2048),
        "qwen2.5-vl-7b": partial(_record, "qwen_vl:Qwen25VL", hidden=3584),
        "qwen2.5-vl-32b": partial(_record, "qwen_vl:Qwen25VL", hidden=5120),
        "qwen2.5-vl-72b": partial(_record, "qwen_vl:Qwen25VL", hidden=8192),
        "qwen3-vl-2b": partial(_record, "qwen_vl:Qwen3VL", hidden=2048),
        "qwen3-vl-4b": partial(_record, "qwen_vl:Qwen3VL", hidden=2560),
        "qwen3-vl-8b": partial(_record, "qwen_vl:Qwen3VL", hidden=4096),
        "qwen3-vl-32b": partial(_record, "qwen_vl:Qwen3VL", hidden=5120),
        "qwen3-vl-30b-a3b": partial(_record, "qwen_vl:Qwen3VL", hidden=2048),
        "qwen3-vl-235b-a22b": partial(_record, "qwen_vl:Qwen3VL", hidden=4096),
        "gemma-3-4b": partial(_record, "gemma:Gemma3", hidden=2560),
        "gemma-3-12b": partial(_record, "gemma:Gemma3", hidden=3840),
        "gemma-3-27b": partial(_record, "gemma:Gemma3", hidden=5376),
        # vLLM issue 52040 (v0.25.1) states float32 pixels for Gemma 4; a server that casts them needs wire_dtype="bfloat16".
        "gemma-4-e2b": partial(_record, "gemma:Gemma4", hidden=1536, wire_dtype="float32", has_audio=True),
        "gemma-4-e4b": partial(_record, "gemma:Gemma4", hidden=2560, wire_dtype="float32", has_audio=True),
        "gemma-4-26b-a4b": partial(_record, "gemma:Gemma4", hidden=2816, wire_dtype="float32"),
        "gemma-4-31b": partial(_record, "gemma:Gemma4", hidden=5376, wire_dtype="float32"),
        "internvl3-1b": partial(_record, "tiled:InternVL", hidden=896),
        "internvl3-2b": partial(_record, "tiled:InternVL", hidden=1536),
        "internvl3-8b": partial(_record, "tiled:InternVL", hidden=3584),
        "internvl3-14b": partial(_record, "tiled:InternVL", hidden=5120),
        "internvl3-38b": partial(_record, "tiled:InternVL", hidden=5120),
        "internvl3-78b": partial(_record, "tiled:InternVL", hidden=8192),
        "llava-1.5-7b": partial(_record, "llava:Llava", hidden=4096, wire_dtype="float16", embed_dtype="float16"),
        "llava-1.5-13b": partial(_record, "llava:Llava", hidden=5120, wire_dtype="float16", embed_dtype="float16"),
        "pixtral-12b": partial(_record, "llava:Pixtral", hidden=5120),
        "llama-4-scout": partial(_record, "tiled:Llama4", hidden=5120),
        "llama-4-maverick": partial(_record, "tiled:Llama4", hidden=5120),
        "whisper-small": partial(
            _record, "audio:Whisper", hidden=768, mel_bins=80, wire_dtype="float16", embed_dtype="float16"
        ),
        "whisper-large-v3": partial(_record, "audio:Whisper", hidden=1280, wire_dtype="float16", embed_dtype="float16"),
        "qwen2-audio-7b": partial(_record, "audio:Qwen2Audio", hidden=4096),
        "qwen2.5-omni-3b": partial(_record, "qwen_omni:Qwen25Omni", hidden=2048),
        "qwen2.5-omni-7b": partial(_record, "qwen_omni:Qwen25Omni", hidden=3584),
        "qwen3-omni-30b-a3b": partial(_record, "qwen_omni:Qwen3Omni", hidden=2048),
    }
)


def families() -> Sequence[str]:
    """Names that `family` knows, sorted."""
    return tuple(sorted(_CHECKPOINTS))


def family(name: str, /, **overrides: Any) -> Family:
    """A checkpoint by name, with some of its constants replaced.

    Args:
        name: One of `families()`.
        overrides: Constants of the record that stands behind the name.

    Raises:
        InputError: Unknown name, unknown constant, or a value that the constant cannot take.
    """
    found = _CHECKPOINTS.get(name)
    if found is None:
        raise InputError(f"model family {name!r}", "no such family", f"the families are {', '.join(families())}")
    constants = [one.name for one in fields(found(name=name)) if one.name != "name"]
    unknown = sorted(set(overrides) - set(constants))
    if unknown:
        raise InputError(
            f"override {', '.join(unknown)} of {name}", "no such constant", f"it has {', '.join(constants)}"
        )
    return found(**{"name": name, **overrides})


def family_in(dialect: Dialect, name: str, /, **overrides: Any) -> Family:
    """A checkpoint as a dialect has it, where that does not follow from the checkpoint alone.

    Args:
        dialect: Rule `slots.mask_kept`.
        name: As of `family`.
        overrides: As of `family`; they win.

    Raises:
        InputError: As by `family`.
    """
    if hasattr(family(name), "mask_kept"):
        overrides = {"mask_kept": dialect[MASK_KEPT](), **overrides}
    return family(name, **overrides)
