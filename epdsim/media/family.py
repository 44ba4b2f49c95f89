"""The register of checkpoints: `family("qwen3-vl-8b")` and what it answers.

Every checkpoint is a record of constants; an override replaces some of them, for example
`family("gemma-4-31b", max_soft_tokens=560)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any

from epdsim.core.errors import InputError
from epdsim.media.base import BaseFamily, Family, RenderedMedia
from epdsim.media.gemma import Gemma4
from epdsim.media.qwen_vl import Qwen3VL, Qwen25VL

__all__ = ["Family", "RenderedMedia", "families", "family"]

_CHECKPOINTS: Mapping[str, Callable[..., BaseFamily]] = MappingProxyType(
    {
        "qwen2.5-vl-3b": partial(Qwen25VL, hidden=2048),
        "qwen2.5-vl-7b": partial(Qwen25VL, hidden=3584),
        "qwen2.5-vl-32b": partial(Qwen25VL, hidden=5120),
        "qwen2.5-vl-72b": partial(Qwen25VL, hidden=8192),
        "qwen3-vl-2b": partial(Qwen3VL, hidden=2048),
        "qwen3-vl-4b": partial(Qwen3VL, hidden=2560),
        "qwen3-vl-8b": partial(Qwen3VL, hidden=4096),
        "qwen3-vl-32b": partial(Qwen3VL, hidden=5120),
        "qwen3-vl-30b-a3b": partial(Qwen3VL, hidden=2048),
        "qwen3-vl-235b-a22b": partial(Qwen3VL, hidden=4096),
        "gemma-4-31b": partial(Gemma4, hidden=5376, wire_dtype="float32"),
    }
)


def families() -> Sequence[str]:
    """Names that `family` knows, sorted."""
    return tuple(sorted(_CHECKPOINTS))


def family(name: str, **overrides: Any) -> Family:
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
    base = found(name=name)
    known = [one.name for one in fields(base) if one.name != "name"]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise InputError(f"override {', '.join(unknown)} of {name}", "no such constant", f"it has {', '.join(known)}")
    return found(name=name, **overrides)
