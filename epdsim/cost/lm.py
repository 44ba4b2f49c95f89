"""How long one step of the language model takes: a linear form and a roofline.

A simulator asks for millions of steps, so a model turns everything it knows into a few coefficients when it is built, and a step
costs a handful of multiplications. No model falls when a field of the load grows.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Literal, NamedTuple, Protocol

from epdsim.core.errors import InputError
from epdsim.cost.checks import non_negative
from epdsim.cost.efficiency import LmEfficiency, lm_efficiency
from epdsim.cost.hardware import Gpu, gpu
from epdsim.cost.models import BF16_BYTES, LmSpec, lm_spec

Precision = Literal["bf16", "fp8"]
FP8_BYTES = 1


class StepLoad(NamedTuple):
    """What one step computes, summed over its requests.

    Attributes:
        prefill_tokens: New prompt tokens.
        prefill_pairs: Attention pairs of the chunks, see `chunk_pairs`.
        decode_requests: Requests that compute one token.
        decode_context_tokens: Sum of the contexts of those requests.
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_requests: int = 0
    decode_context_tokens: int = 0


def chunk_pairs(computed_tokens: int, chunk_tokens: int) -> int:
    """Causal attention pairs of one chunk: each token sees what was computed before, its predecessors in the chunk and itself."""
    return chunk_tokens * computed_tokens + chunk_tokens * (chunk_tokens + 1) // 2


class LmCost(Protocol):
    """Anything that says how long a step takes."""

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds from the start of the forward pass to its end; 0 for an empty step."""
        ...


DecodeStepper = Callable[[int, int, int], list[float]]
"""A model's `decode_steps_ms(requests, context_tokens, num_steps)`: milliseconds of steps that only decode, to the bit what
`step_ms` says of each. `context_tokens` is the sum of the contexts in the first step; it grows by a token per request and step.
There is a request at least, and a step."""


def decode_stepper(lm: LmCost) -> DecodeStepper:
    """A model's `decode_steps_ms`, made of its `step_ms` where it has none."""
    found: DecodeStepper | None = getattr(lm, "decode_steps_ms", None)
    if found is not None:
        return found

    def one_by_one(requests: int, context_tokens: int, num_steps: int) -> list[float]:
        contexts = range(context_tokens, context_tokens + requests * num_steps, requests)
        return [lm.step_ms(StepLoad(0, 0, requests, context)) for context in contexts]

    return one_by_one


class LinearLm:
    """A sum of one term per field of the load.

    Raises:
        InputError: When a coefficient is negative or not finite.
    """

    __slots__ = ("context_token_ms", "decode_request_ms", "fixed_ms", "pair_ms", "prefill_token_ms")

    def __init__(
        self,
        *,
        fixed_ms: float,
        prefill_token_ms: float,
        pair_ms: float = 0.0,
        decode_request_ms: float = 0.0,
        context_token_ms: float = 0.0,
    ) -> None:
        self.fixed_ms = non_negative("fixed_ms", fixed_ms)
        self.prefill_token_ms = non_negative("prefill_token_ms", prefill_token_ms)
        self.pair_ms = non_negative("pair_ms", pair_ms)
        self.decode_request_ms = non_negative("decode_request_ms", decode_request_ms)
        self.context_token_ms = non_negative("context_token_ms", context_token_ms)

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds of the step."""
        tokens, pairs, requests, context = load
        if not (tokens or requests):
            return 0.0
        return (
            self.fixed_ms
            + self.prefill_token_ms * tokens
            + self.pair_ms * pairs
            + self.decode_request_ms * requests
            + self.context_token_ms * context
        )

    def decode_steps_ms(self, requests: int, context_tokens: int, num_steps: int) -> list[float]:
        """Milliseconds of steps that only decode, see `DecodeStepper`."""
        fixed_ms, token_ms = self.fixed_ms + self.decode_request_ms * requests, self.context_token_ms
        end = context_tokens + requests * num_steps
        return [fixed_ms + token_ms * context for context in range(context_tokens, end, requests)]


class RooflineLm:
    """Weights and operations over the rates of a GPU, with fitted efficiencies.

    The projections of all tokens of a step run together, so their time is a smooth maximum of the operations and of the weights
    read once: the root of the sum of both squares. Activations that pass between kernels, attention over the pairs of prefill
    chunks, reading the KV cache of the decode requests, tensor-parallel all-reduces (two per layer, ring bytes plus latency) and
    launch overhead add to it. An MoE step reads the experts that its tokens visit: `1 - (1 - k/E)^tokens` of all, as if they chose
    evenly. Sliding layers see their window only.

    Args:
        model: A language model or its name.
        gpu_type: A GPU or its name.
        tp: GPUs that share the model; operations and weights are split evenly, the KV cache as far as it has heads.
        efficiency: The fitted constants; by default those of the GPU.
        weights: What the layers' weights are kept and multiplied in; the output head stays in bf16. Where a GPU cannot multiply
            FP8, only the bytes are fewer.
        kv_cache: What the KV cache is kept in; its attention is computed as in bf16.

    Raises:
        InputError: When a name is unknown or `tp` is not a positive divisor of the model's heads.
    """

    __slots__ = (
        "_decode_ms",
        "_expert_ms",
        "_fixed_ms",
        "_kv_ms",
        "_miss",
        "_pair_ms",
        "_prefill_ms",
        "_request_ms",
        "_sliding_kv_ms",
        "_sliding_pair_ms",
        "_token_ms",
        "_weights_ms",
        "_window",
        "efficiency",
        "gpu",
        "model",
        "tp",
    )

    def __init__(
        self,
        model: LmSpec | str,
        gpu_type: Gpu | str,
        tp: int = 1,
        efficiency: LmEfficiency | None = None,
        *,
        weights: Precision = "bf16",
        kv_cache: Precision = "bf16",
    ) -> None:
        spec = lm_spec(model) if isinstance(model, str) else model
        card = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
        if tp < 1 or spec.heads % tp:
            raise InputError(f"tp = {tp}", f"must divide the {spec.heads} heads of {spec.name}")
        eff = efficiency or lm_efficiency(card.name)
        self.model, self.gpu, self.tp, self.efficiency = spec, card, tp, eff
        flop_ms = 1e3 / (card.bf16_flops * tp)
        byte_ms = 1e3 / (card.hbm_bytes_per_s * tp)
        # Of one weight of a layer, in the time and bytes of one in bf16.
        flops, nbytes = 1.0, BF16_BYTES * 1.0
        if weights == "fp8":
            nbytes = FP8_BYTES / eff.fp8_bandwidth
            flops = card.bf16_flops / (card.fp8_flops * eff.fp8_mfu) if card.fp8_flops else 1.0
        self._prefill_ms = 2 * flops * spec.active_parameters * flop_ms / eff.mfu_prefill
        self._decode_ms = 2 * (flops * spec.active_parameters + spec.head_parameters) * flop_ms / eff.mfu_decode
        read_bytes = nbytes * spec.dense_parameters + BF16_BYTES * spec.head_parameters
        self._weights_ms = read_bytes * byte_ms / eff.weight_bandwidth
        self._expert_ms = nbytes * spec.experts * spec.expert_parameters * byte_ms / eff.expert_bandwidth
        self._miss = 1 - spec.experts_per_token / spec.experts if spec.experts else 1.0
        score_ms = 4 * flop_ms / eff.mfu_attention
        self._pair_ms, self._sliding_pair_ms = score_ms * spec.score_values, score_ms * spec.sliding_score_values
        kv_ms = 1e3 / (card.hbm_bytes_per_s * min(tp, spec.kv_heads) * eff.kv_bandwidth)
        kv_ms *= 0.5 if kv_cache == "fp8" else 1.0
        self._kv_ms = spec.full_kv_bytes_per_token * kv_ms
        self._sliding_kv_ms = (spec.kv_bytes_per_token - spec.full_kv_bytes_per_token) * kv_ms
        self._window = spec.sliding_window
        self._fixed_ms = eff.fixed_ms + spec.layers * eff.layer_us * 1e-3
        self._request_ms = eff.request_us * 1e-3
        self._token_ms = BF16_BYTES * spec.activation_values * byte_ms * eff.activation_passes
        if tp > 1:
            ring_bytes = 2 * (tp - 1) / tp * spec.hidden * BF16_BYTES
            self._token_ms += 2 * spec.layers * ring_bytes * 1e3 / (card.intra_node_bytes_per_s * eff.link_bandwidth)
            self._fixed_ms += 2 * spec.layers * eff.allreduce_us * 1e-3

    def step_ms(self, load: StepLoad) -> float:
        """Milliseconds of the step."""
        tokens, pairs, requests, context = load
        total = tokens + requests
        if not total:
            return 0.0
        compute = self._prefill_ms * tokens + self._decode_ms * requests
        memory = self._weights_ms
        if self._expert_ms:
            memory += self._expert_ms * (1.0 - self._miss**total)
        step = (
            self._fixed_ms
            + sqrt(compute * compute + memory * memory)
            + self._pair_ms * pairs
            + self._kv_ms * context
            + self._request_ms * requests
            + self._token_ms * total
        )
        if self._window:
            step += self._sliding_pair_ms * min(pairs, tokens * self._window)
            step += self._sliding_kv_ms * min(context, requests * self._window)
        return step

    def decode_steps_ms(self, requests: int, context_tokens: int, num_steps: int) -> list[float]:
        """Milliseconds of steps that only decode, see `DecodeStepper`."""
        compute, memory = self._decode_ms * requests, self._weights_ms
        if self._expert_ms:
            memory += self._expert_ms * (1.0 - self._miss**requests)
        fixed_ms, kv_ms = self._fixed_ms + sqrt(compute * compute + memory * memory), self._kv_ms
        request_ms, token_ms = self._request_ms * requests, self._token_ms * requests
        seen, sliding_ms, context = float(requests * self._window), self._sliding_kv_ms, float(context_tokens)
        steps_ms: list[float] = []
        for _ in range(num_steps):
            step_ms = fixed_ms + kv_ms * context + request_ms + token_ms
            if seen:
                step_ms += sliding_ms * min(context, seen)
            steps_ms.append(step_ms)
            context += requests
        return steps_ms
