"""Fitted constants of the rooflines, by GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TypeVar

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.cost.checks import non_negative, positive


@record
class LmEfficiency:
    """What a language model reaches of a GPU's peak rates, and what it pays besides.

    Attributes:
        mfu_prefill: Share of peak operations in the projections of prompt tokens.
        mfu_decode: The same for decode tokens.
        mfu_attention: Share of peak operations in causal attention.
        weight_bandwidth: Share of peak bandwidth when weights are read.
        expert_bandwidth: The same for routed experts.
        kv_bandwidth: The same for the KV cache.
        activation_passes: How often every activation value goes over the memory bus.
        link_bandwidth: Share of the GPU-to-GPU rate in an all-reduce.
        allreduce_us: Latency of one all-reduce.
        fixed_ms: Once per step.
        layer_us: Per layer and step: launches, norms, everything that does not grow.
        request_us: Per decode request: sampling and small kernels.
        fp8_mfu: What products of FP8 reach of their peak, as a share of what those of bf16 reach of theirs.
        fp8_bandwidth: The same of the memory's rate when weights are read.
    """

    mfu_prefill: float
    mfu_decode: float
    mfu_attention: float
    weight_bandwidth: float
    expert_bandwidth: float
    kv_bandwidth: float
    activation_passes: float = 0.0
    link_bandwidth: float = 1.0
    allreduce_us: float = 0.0
    fixed_ms: float = 0.0
    layer_us: float = 0.0
    request_us: float = 0.0
    fp8_mfu: float = 0.57
    fp8_bandwidth: float = 0.75

    def __post_init__(self) -> None:
        _check(self, zero_allowed=("activation_passes", "allreduce_us", "fixed_ms", "layer_us", "request_us"))


EAGER_LAYER_US = 400.0
"""Vision towers run eagerly unless told otherwise: a CUDA graph spared one of 27 layers on H200 10.9 ms of TTFT in the mean
(LightLLM PR 1181), so its launches took that much at least; its kernels alone take 1.4 ms for a small picture. A tower of 27
layers on a 4090 was spared 21.8 ms by the graph in requests of two pictures (vLLM PR 41992)."""


@record
class EncodeEfficiency:
    """What a vision tower reaches of a GPU's peak rates, and what it pays besides.

    Attributes:
        mfu: Share of peak operations in the projections.
        mfu_attention: Share of peak operations in attention among the patches of one item.
        weight_bandwidth: Share of peak bandwidth when weights are read.
        fixed_ms: Once per run.
        layer_us: Per layer and run.
        eager_us: Per layer, what its kernels take to launch one by one; a run takes no less. 0 where it is a CUDA graph.
        factor: On the whole, for a host or GPU without a table of its own.
    """

    mfu: float
    mfu_attention: float
    weight_bandwidth: float
    fixed_ms: float = 0.0
    layer_us: float = 0.0
    eager_us: float = EAGER_LAYER_US
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check(self, zero_allowed=("fixed_ms", "layer_us", "eager_us"))


def _check(record: LmEfficiency | EncodeEfficiency, zero_allowed: tuple[str, ...]) -> None:
    for each in fields(record):
        check = non_negative if each.name in zero_allowed else positive
        check(each.name, getattr(record, each.name))


_H100 = LmEfficiency(
    mfu_prefill=0.958,
    mfu_decode=0.958,
    mfu_attention=0.666,
    weight_bandwidth=0.849,
    expert_bandwidth=0.86,
    kv_bandwidth=0.946,
    activation_passes=3.58,
    link_bandwidth=0.444,
    allreduce_us=2.21,
    layer_us=39.2,
    request_us=1.69,
)
_A100 = replace(
    _H100,
    mfu_prefill=1.0,
    mfu_decode=1.0,
    mfu_attention=0.612,
    weight_bandwidth=0.73,
    expert_bandwidth=0.74,
    kv_bandwidth=0.834,
    link_bandwidth=0.41,
)
"""No modelled steps: the H100's constants times the ratio of what both GPUs reach in measured kernel tables (AIConfigurator,
vLLM 0.14 and 0.24, medians): matrix products of 2,048 to 8,192 rows 0.881 / 0.801 of peak (here limited to 1), of up to
8 rows 0.693 / 0.806 of bandwidth, causal attention 0.556 / 0.605, decode attention 0.702 / 0.796, large all-reduces
0.70 / 0.757."""
_L40S = LmEfficiency(
    mfu_prefill=0.742,
    mfu_decode=0.742,
    mfu_attention=0.491,
    weight_bandwidth=0.782,
    expert_bandwidth=0.86,
    kv_bandwidth=0.81,
    activation_passes=2.64,
    link_bandwidth=0.508,
    allreduce_us=8.41,
    layer_us=9.22,
    request_us=12.0,
)
_H100_ENCODE = EncodeEfficiency(mfu=0.455, mfu_attention=0.496, weight_bandwidth=0.518, fixed_ms=0.0161, layer_us=38.6)
_L40S_ENCODE = EncodeEfficiency(mfu=0.359, mfu_attention=0.472, weight_bandwidth=0.979, fixed_ms=0.32, layer_us=28.3)
_A100_ENCODE = replace(_H100_ENCODE, mfu=0.5, mfu_attention=0.456, weight_bandwidth=0.446)
"""The H100's times the ratios of measured kernels as above: 2.5 times its run time at 640 x 640, 3.1 at 1920 x 1080."""

LM_EFFICIENCY: Mapping[str, LmEfficiency] = MappingProxyType(
    {
        "h100": _H100,
        "h200": LmEfficiency(
            mfu_prefill=0.919,
            mfu_decode=0.919,
            mfu_attention=0.635,
            weight_bandwidth=0.826,
            expert_bandwidth=0.817,
            kv_bandwidth=0.932,
            activation_passes=3.96,
            link_bandwidth=0.474,
            allreduce_us=2.82,
            layer_us=40.6,
            request_us=1.43,
            fp8_mfu=0.62,
            fp8_bandwidth=0.68,
        ),
        "b200": LmEfficiency(
            mfu_prefill=0.825,
            mfu_decode=0.825,
            mfu_attention=0.637,
            weight_bandwidth=0.847,
            expert_bandwidth=0.889,
            kv_bandwidth=0.961,
            activation_passes=4.47,
            link_bandwidth=0.336,
            allreduce_us=8.19,
            layer_us=36.8,
            request_us=0.05,
        ),
        "gb200": LmEfficiency(
            mfu_prefill=0.707,
            mfu_decode=0.707,
            mfu_attention=0.506,
            weight_bandwidth=0.846,
            expert_bandwidth=0.86,
            kv_bandwidth=0.97,
            activation_passes=3.43,
            link_bandwidth=0.272,
            allreduce_us=5.1,
            layer_us=37.9,
            request_us=0.05,
        ),
        "l40s": _L40S,
        "a100": _A100,
        "a100-40g": _A100,  # the same chip with slower memory
        "h800": _H100,  # the same chip with slower links
        "rtx4090": _L40S,  # a guess: the same architecture, no table
        "h20": _H100,  # a guess: the same architecture, no table
    }
)
"""Constants of the language model roofline by GPU.

Fitted to step times that AIConfigurator 0.12.0 models for Qwen3-VL 2B, 4B, 8B, 32B (TP 1, 2, 4) and 30B-A3B on vLLM 0.24, bf16:
least squares of the logarithm of the ratio with a soft limit on outliers, prefill rows counted twice, the MFUs of prefill and
decode held equal. L40S leaves out TP 4, where the tool's all-reduces take four times as long as their ring bytes.

FP8 is not fitted: its two shares are medians over measured matrix products of H100 and H200 (AIConfigurator, vLLM 0.24, Cutlass
with scaled activations; at least 2,048 wide and deep), of 2,048 to 8,192 rows and of up to 8. Products of bf16 take 1.13 and 1.24
times as long with many rows, 1.46 and 1.37 times with few. GPUs without such a table have the H100's.
"""

ENCODE_EFFICIENCY: Mapping[str, EncodeEfficiency] = MappingProxyType(
    {
        "h100": _H100_ENCODE,
        "h200": EncodeEfficiency(mfu=0.512, mfu_attention=0.487, weight_bandwidth=0.446, fixed_ms=0.001, layer_us=37.9),
        "b200": EncodeEfficiency(mfu=0.425, mfu_attention=0.381, weight_bandwidth=0.361, fixed_ms=0.001, layer_us=35.9),
        "gb200": EncodeEfficiency(mfu=0.441, mfu_attention=0.33, weight_bandwidth=0.651, fixed_ms=0.001, layer_us=40.5),
        "l40s": _L40S_ENCODE,
        "a100": _A100_ENCODE,
        "a100-40g": _A100_ENCODE,
        "h800": _H100_ENCODE,
        "rtx4090": _L40S_ENCODE,  # a guess, as above
        # No table: chosen so that four 1920 x 1080 pictures take the tower of Qwen2.5-VL-72B about 490 ms (SGLang blog of
        # 2026-01-12: 492, 466 and 524 ms at TP 2, 4 and 8, the size of its pictures taken from its other runs).
        "h20": replace(_H100_ENCODE, mfu=0.95, mfu_attention=0.85),
    }
)
"""Constants of the vision tower roofline by GPU.

Fitted to encoder times that AIConfigurator 0.12.0 models for Qwen3-VL 2B, 4B, 8B and 32B on vLLM 0.24, bf16, TP 1, pictures of 224
to 3,840 pixels a side, 1 to 8 in one run; least squares as above.
"""

_EfficiencyT = TypeVar("_EfficiencyT")


FP8_MEASURED = frozenset({"h100", "h200", "h800"})
"""GPUs whose products of FP8 were measured; the others take the H100's shares."""


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
