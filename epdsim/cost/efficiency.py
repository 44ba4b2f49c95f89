"""Fitted constants of the rooflines, by GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from epdsim.core.errors import InputError
from epdsim.cost.checks import non_negative, positive


@dataclass(frozen=True, slots=True)
class LmEfficiency:
    """What a language model reaches of a GPU's peak rates, and what it pays besides.

    Attributes:
        mfu_prefill: Share of peak operations in the projections of prompt tokens.
        mfu_decode: The same for decode tokens.
        mfu_attention: Share of peak operations in causal attention.
        weight_bandwidth: Share of peak bandwidth when weights are read.
        expert_bandwidth: The same for routed experts.
        kv_bandwidth: The same for the KV cache.
        link_bandwidth: Share of the GPU-to-GPU rate in an all-reduce.
        allreduce_us: Latency of one all-reduce.
        fixed_ms: Once per step.
        layer_us: Per layer and step: launches, norms, everything that does not grow.
        request_us: Per decode request: sampling and small kernels.
        overlap_power: p of the smooth maximum of operations and weight traffic; large is a sharp roofline.
    """

    mfu_prefill: float
    mfu_decode: float
    mfu_attention: float
    weight_bandwidth: float
    expert_bandwidth: float
    kv_bandwidth: float
    link_bandwidth: float
    allreduce_us: float
    fixed_ms: float
    layer_us: float
    request_us: float
    overlap_power: float

    def __post_init__(self) -> None:
        for name in (
            "mfu_prefill",
            "mfu_decode",
            "mfu_attention",
            "weight_bandwidth",
            "expert_bandwidth",
            "kv_bandwidth",
        ):
            positive(name, getattr(self, name))
        positive("link_bandwidth", self.link_bandwidth)
        for name in ("allreduce_us", "fixed_ms", "layer_us", "request_us"):
            non_negative(name, getattr(self, name))
        _power(self.overlap_power)


@dataclass(frozen=True, slots=True)
class EncodeEfficiency:
    """What a vision tower reaches of a GPU's peak rates, and what it pays besides.

    Attributes:
        mfu: Share of peak operations in the projections.
        mfu_attention: Share of peak operations in attention among the patches of one item.
        weight_bandwidth: Share of peak bandwidth when weights are read.
        fixed_ms: Once per run.
        layer_us: Per layer and run.
        overlap_power: As for `LmEfficiency`.
        factor: On the whole, for a GPU without a table of its own.
    """

    mfu: float
    mfu_attention: float
    weight_bandwidth: float
    fixed_ms: float
    layer_us: float
    overlap_power: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mfu", "mfu_attention", "weight_bandwidth", "factor"):
            positive(name, getattr(self, name))
        for name in ("fixed_ms", "layer_us"):
            non_negative(name, getattr(self, name))
        _power(self.overlap_power)


def _power(value: float) -> None:
    if positive("overlap_power", value) < 1:
        raise InputError(f"overlap_power = {value}", "must be 1 or more")


_FIRST_LM = LmEfficiency(0.68, 0.5, 0.45, 0.85, 0.5, 0.9, 0.6, 5.0, 0.5, 5.0, 5.0, 3.0)
_FIRST_ENCODE = EncodeEfficiency(0.5, 0.45, 0.8, 0.2, 30.0, 3.0)
_NAMES = ("a100", "h100", "h200", "b200", "gb200", "l40s", "h20")

LM_EFFICIENCY: Mapping[str, LmEfficiency] = MappingProxyType(dict.fromkeys(_NAMES, _FIRST_LM))
"""Constants of the language model roofline by GPU."""

ENCODE_EFFICIENCY: Mapping[str, EncodeEfficiency] = MappingProxyType(dict.fromkeys(_NAMES, _FIRST_ENCODE))
"""Constants of the vision tower roofline by GPU."""

_EfficiencyT = TypeVar("_EfficiencyT")


def lm_efficiency(gpu_name: str) -> LmEfficiency:
    """The constants of a GPU's language model roofline.

    Raises:
        InputError: When none were fitted for it.
    """
    return _of(LM_EFFICIENCY, gpu_name)


def encode_efficiency(gpu_name: str) -> EncodeEfficiency:
    """The constants of a GPU's vision tower roofline.

    Raises:
        InputError: When none were fitted for it.
    """
    return _of(ENCODE_EFFICIENCY, gpu_name)


def _of(table: Mapping[str, _EfficiencyT], gpu_name: str) -> _EfficiencyT:
    found = table.get(gpu_name)
    if found is None:
        raise InputError(f"GPU {gpu_name!r}", "has no fitted constants", f"give them, or use one of {', '.join(table)}")
    return found
