"""Step costs with the constants that the BLIS simulator (inference-sim) publishes, for comparison.

BLIS says of its fitted form that on 36 held-out runs of text models the median error was 6.7 % in the mean end-to-end time and
17.6 % in the mean time to first token. Its factor on prefill operations comes from short prompts: at thousands of tokens per step
it stays several times below measured kernels, where `RooflineLm` or a table is the better choice. BLIS has no encoder stage.
"""

from __future__ import annotations

from epdsim.core.errors import InputError
from epdsim.cost.hardware import Gpu, gpu
from epdsim.cost.lm import StepLoad
from epdsim.cost.models import BF16_BYTES, LmSpec, lm_spec

ROOFLINE_MFU = {"h100": (0.45, 0.30), "a100": (0.38, 0.18), "l40s": (0.32, 0.08)}
"""Shares of peak operations in prefill and in decode, by GPU."""

PREFILL_COMPUTE = 0.152
DECODE_KV = 1.947
WEIGHTS = 1.363
ALL_REDUCE = 0.752
LAYER_US = 32.1
REQUEST_US = 4.42
STEP_US = 126.0
"""Fitted on 15 runs on H100 (vLLM 0.15): factors on peak-rate times, then microseconds."""

QUEUEING_MS = 15.563
FINISH_MS = 0.777
OUTPUT_TOKEN_MS = 0.0459
"""What the same fit puts on a request outside its steps: before, at the end, and per output token."""


class BlisRooflineLm:
    """The larger of operations and bytes for prefill, plus the same for decode.

    Raises:
        InputError: When a name is unknown, or BLIS has no constants for the GPU.
    """

    __slots__ = ("_decode_ms", "_kv_ms", "_pair_decode_ms", "_pair_ms", "_prefill_ms", "_weights_ms")

    def __init__(self, model: LmSpec | str, gpu_type: Gpu | str, tp: int = 1) -> None:
        spec, card, flop_ms, byte_ms = _rates(model, gpu_type, tp)
        if card.name not in ROOFLINE_MFU:
            raise InputError(f"GPU {card.name!r}", "has no BLIS constants", f"use one of {', '.join(ROOFLINE_MFU)}")
        prefill_mfu, decode_mfu = ROOFLINE_MFU[card.name]
        self._prefill_ms = 2 * spec.active_parameters * flop_ms / prefill_mfu
        self._pair_ms = 4 * spec.score_values * flop_ms / prefill_mfu
        self._decode_ms = 2 * spec.active_parameters * flop_ms / decode_mfu
        self._pair_decode_ms = 4 * spec.score_values * flop_ms / decode_mfu
        self._weights_ms = _weight_bytes(spec) * byte_ms
        self._kv_ms = spec.kv_bytes_per_token * byte_ms

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds of the step."""
        tokens, pairs, requests, context = load
        step = 0.0
        if tokens:
            compute = self._prefill_ms * tokens + self._pair_ms * pairs
            step += max(compute, self._weights_ms + self._kv_ms * tokens)
        if requests:
            compute = self._decode_ms * requests + self._pair_decode_ms * context
            step += max(compute, self._weights_ms + self._kv_ms * (context + requests))
        return step


class BlisTrainedLm:
    """Peak-rate times with fitted factors, plus overheads per layer, request and step.

    Raises:
        InputError: When a name is unknown.
    """

    __slots__ = ("_fixed_ms", "_kv_ms", "_pair_ms", "_prefill_ms", "_token_ms")

    def __init__(self, model: LmSpec | str, gpu_type: Gpu | str, tp: int = 1) -> None:
        spec, card, flop_ms, byte_ms = _rates(model, gpu_type, tp)
        self._prefill_ms = PREFILL_COMPUTE * 2 * spec.active_parameters * flop_ms
        self._pair_ms = PREFILL_COMPUTE * 4 * spec.score_values * flop_ms
        self._kv_ms = DECODE_KV * spec.kv_bytes_per_token * byte_ms
        self._fixed_ms = WEIGHTS * _weight_bytes(spec) * byte_ms + (LAYER_US * spec.layers + STEP_US) * 1e-3
        # Ring bytes of two all-reduces per layer, over the memory bandwidth: the factor holds the ratio to the link.
        ring_bytes = 2 * spec.layers * 2 * spec.hidden * BF16_BYTES * (tp - 1) / tp
        self._token_ms = ALL_REDUCE * ring_bytes * 1e3 / card.hbm_bytes_per_s

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds of the step; a step's prefill chunks count as one request."""
        tokens, pairs, requests, context = load
        if not (tokens or requests):
            return 0.0
        return (
            self._fixed_ms
            + self._prefill_ms * tokens
            + self._pair_ms * pairs
            + self._kv_ms * (context + requests)
            + self._token_ms * (tokens + requests)
            + REQUEST_US * 1e-3 * (requests + (tokens > 0))
        )


def _rates(model: LmSpec | str, gpu_type: Gpu | str, tp: int) -> tuple[LmSpec, Gpu, float, float]:
    spec = lm_spec(model) if isinstance(model, str) else model
    card = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
    if tp < 1:
        raise InputError(f"tp = {tp}", "must be 1 or more")
    return spec, card, 1e3 / (card.bf16_flops * tp), 1e3 / (card.hbm_bytes_per_s * tp)


def _weight_bytes(spec: LmSpec) -> int:
    return BF16_BYTES * (spec.dense_parameters + spec.experts * spec.expert_parameters)
