"""Shapes of language models and vision towers: what a roofline needs to know of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol, TypeVar

from epdsim.core.errors import InputError
from epdsim.core.records import record

BF16_BYTES = 2


@record
class LmSpec:
    """A decoder-only language model in bf16.

    Attributes:
        intermediate: Width of the gated feed-forward of dense layers.
        tied_head: The output head shares the embedding's weights.
        experts: Routed experts per MoE layer, 0 for a dense model.
        experts_per_token: Routed experts that one token visits.
        expert_intermediate: Feed-forward width of one routed expert.
        shared_intermediate: Feed-forward width of the experts that every token visits.
        dense_layers: Layers of an MoE model that have a dense feed-forward instead.
        sliding_layers: Layers that attend to the last `sliding_window` tokens only.
        full_head_dim: Head width of the full-attention layers where it differs from that of the sliding layers.
        attention_parameters: Projection weights over all layers, where heads and head_dim do not tell them.
        kv_values_per_token: Cached values per token over the full-attention layers, where kv_heads and head_dim do not tell them.
        sliding_kv_values_per_token: The same over the sliding layers.
        source: Where the shape comes from.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    source: str
    tied_head: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    sliding_layers: int = 0
    sliding_window: int = 0
    full_head_dim: int = 0
    attention_parameters: int = 0
    kv_values_per_token: int = 0
    sliding_kv_values_per_token: int = 0

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def full_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.layers - self.sliding_layers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more context token adds over all layers (sliding layers too, while inside the window)."""
        return self.full_kv_bytes_per_token + self.sliding_kv_values_per_token * BF16_BYTES

    @property
    def full_kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token over the full-attention layers."""
        return BF16_BYTES * (self.kv_values_per_token or 2 * self.full_layers * self.kv_heads * self.head_dim)

    @property
    def score_values(self) -> int:
        """Widths of all query heads over the full-attention layers: a pair of tokens costs 4 operations for each."""
        return self.full_layers * self.heads * (self.full_head_dim or self.head_dim)

    @property
    def sliding_score_values(self) -> int:
        """The same over the sliding layers."""
        return self.sliding_layers * self.heads * self.head_dim

    @property
    def activation_values(self) -> int:
        """Values that pass between the kernels of all layers for one token, each counted once.

        Residual and norms, the projections of attention, the gated feed-forward, and for routed experts the copies of the token
        that are dealt out and gathered again.
        """
        attention = self.layers * (4 * self.hidden + 2 * (self.heads + self.kv_heads) * self.head_dim)
        dense = (self.layers - self.moe_layers) * 3 * self.intermediate
        routed = self.experts_per_token * (3 * self.expert_intermediate + 2 * self.hidden)
        return attention + dense + self.moe_layers * (routed + 3 * self.shared_intermediate)

    @property
    def head_parameters(self) -> int:
        """Weights of the output head, read once per step and used once per sampled token."""
        return self.vocab * self.hidden

    @property
    def dense_parameters(self) -> int:
        """Weights of all layers that every token uses: attention, dense feed-forward, router, shared experts."""
        per_layer = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        attention = self.attention_parameters or self.layers * per_layer
        dense = (self.layers - self.moe_layers) * 3 * self.hidden * self.intermediate
        moe = self.moe_layers * self.hidden * (self.experts + 3 * self.shared_intermediate)
        return attention + dense + moe

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert over all MoE layers."""
        return self.moe_layers * 3 * self.hidden * self.expert_intermediate

    @property
    def active_parameters(self) -> int:
        """Weights of the layers that one token visits, without embedding and head."""
        return self.dense_parameters + self.experts_per_token * self.expert_parameters

    @property
    def parameters(self) -> int:
        """All weights, embedding and head included, norms and biases left out."""
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        return self.dense_parameters + self.experts * self.expert_parameters + embeddings


@record
class VisionSpec:
    """A vision tower in bf16, with what joins it to the language model.

    Attributes:
        ffn: Width of the feed-forward.
        patch_values: Values of one flattened input patch.
        merge: Patches that become one token.
        mergers: Projections into the language model: 1 plus the deepstack levels.
        out_hidden: Hidden size of the language model.
        gated_ffn: The feed-forward has three matrices instead of two.
        full_attention_layers: Layers in which every patch of an item sees every other; None means all.
        window_patches: Patches of one attention window in the other layers.
        merger_two_layers: The merger is a two-layer network of width `merge * hidden`; a single projection otherwise.
    """

    name: str
    depth: int
    hidden: int
    heads: int
    ffn: int
    patch_values: int
    merge: int
    out_hidden: int
    source: str
    mergers: int = 1
    gated_ffn: bool = False
    full_attention_layers: int | None = None
    window_patches: int = 0
    merger_two_layers: bool = True

    @property
    def full_layers(self) -> int:
        """Layers with attention over a whole item."""
        return self.depth if self.full_attention_layers is None else self.full_attention_layers

    @property
    def layer_parameters(self) -> int:
        """Weights that every patch uses: the layers and the patch embedding."""
        per_layer = self.hidden * (4 * self.hidden + (3 if self.gated_ffn else 2) * self.ffn)
        return self.depth * per_layer + self.patch_values * self.hidden

    @property
    def merger_parameters(self) -> int:
        """Weights that every token (`merge` patches) uses."""
        if not self.merger_two_layers:
            return self.mergers * self.hidden * self.out_hidden
        width = self.merge * self.hidden
        return self.mergers * width * (width + self.out_hidden)

    @property
    def parameters(self) -> int:
        """All weights, norms, biases and position embeddings left out."""
        return self.layer_parameters + self.merger_parameters

    @property
    def embedding_bytes_per_token(self) -> int:
        """Bytes of encoder output per token: all levels side by side, bf16."""
        return self.mergers * self.out_hidden * BF16_BYTES


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_SpecT = TypeVar("_SpecT", bound=_Named)


def _by_name(*specs: _SpecT) -> Mapping[str, _SpecT]:
    return MappingProxyType({spec.name: spec for spec in specs})


_QWEN3_VL = "config.json of Qwen/Qwen3-VL-*-Instruct"
_QWEN25_VL = "config.json of Qwen/Qwen2.5-VL-*-Instruct"
_QWEN2_VL = "config.json of Qwen/Qwen2-VL-*-Instruct"
_LLAMA = "config.json of meta-llama/Llama-3.1-*"
_GEMMA4 = "config.json of google/gemma-4-31B-it"
_KIMI = "config.json of moonshotai/Kimi-VL-A3B-Instruct"

_QWEN3_MOE = LmSpec(
    "",
    *(48, 2048, 32, 4, 128, 6144, 151936),
    _QWEN3_VL,
    experts=128,
    experts_per_token=8,
    expert_intermediate=768,
)

LMS: Mapping[str, LmSpec] = _by_name(
    LmSpec("qwen3-vl-2b", 28, 2048, 16, 8, 128, 6144, 151936, _QWEN3_VL, tied_head=True),
    LmSpec("qwen3-vl-4b", 36, 2560, 32, 8, 128, 9728, 151936, _QWEN3_VL, tied_head=True),
    LmSpec("qwen3-vl-8b", 36, 4096, 32, 8, 128, 12288, 151936, _QWEN3_VL),
    LmSpec("qwen3-vl-32b", 64, 5120, 64, 8, 128, 25600, 151936, _QWEN3_VL),
    replace(_QWEN3_MOE, name="qwen3-vl-30b-a3b"),
    replace(
        _QWEN3_MOE,
        name="qwen3-vl-235b-a22b",
        layers=94,
        hidden=4096,
        heads=64,
        intermediate=12288,
        expert_intermediate=1536,
    ),
    LmSpec("qwen2.5-vl-3b", 36, 2048, 16, 2, 128, 11008, 151936, _QWEN25_VL, tied_head=True),
    LmSpec("qwen2.5-vl-7b", 28, 3584, 28, 4, 128, 18944, 152064, _QWEN25_VL),
    LmSpec("qwen2.5-vl-72b", 80, 8192, 64, 8, 128, 29568, 152064, _QWEN25_VL),
    LmSpec("qwen2-vl-2b", 28, 1536, 12, 2, 128, 8960, 151936, _QWEN2_VL, tied_head=True),
    LmSpec("qwen2-vl-7b", 28, 3584, 28, 4, 128, 18944, 152064, _QWEN2_VL),
    # 50 layers see the last 1,024 tokens through 16 KV heads of 256; 10 see all through 4 of 512,
    # where K and V share one projection.
    LmSpec(
        "gemma-4-31b",
        layers=60,
        hidden=5376,
        heads=32,
        kv_heads=16,
        head_dim=256,
        intermediate=21504,
        vocab=262144,
        source=_GEMMA4,
        tied_head=True,
        sliding_layers=50,
        sliding_window=1024,
        full_head_dim=512,
        attention_parameters=50 * 2 * 5376 * (32 + 16) * 256 + 10 * 5376 * (2 * 32 + 4) * 512,
        kv_values_per_token=10 * 2 * 4 * 512,
        sliding_kv_values_per_token=50 * 2 * 16 * 256,
    ),
    # Latent attention: queries of 128 + 64, one latent of 512 + 64 cached per layer, from which keys and values of 128 are made.
    LmSpec(
        "kimi-vl-a3b",
        layers=27,
        hidden=2048,
        heads=16,
        kv_heads=1,  # the latent, which every GPU holds whole
        head_dim=160,  # mean of the key (192) and value (128) widths: attention work is proportional to their sum
        intermediate=11264,
        vocab=163840,
        source=_KIMI,
        experts=64,
        experts_per_token=6,
        expert_intermediate=1408,
        shared_intermediate=2 * 1408,
        dense_layers=1,
        attention_parameters=27 * (2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048),
        kv_values_per_token=27 * 576,
    ),
    LmSpec("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, _LLAMA),
    LmSpec("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, "config.json of meta-llama/Llama-2-70b-hf"),
    LmSpec("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, _LLAMA),
    LmSpec("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, "config.json of Qwen/Qwen2.5-7B-Instruct"),
    LmSpec("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, "config.json of Qwen/Qwen3-14B"),
    LmSpec(
        "mistral-nemo-12b", 40, 5120, 32, 8, 128, 14336, 131072, "config.json of mistralai/Mistral-Nemo-Instruct-2407"
    ),
    LmSpec("codellama-34b", 48, 8192, 64, 8, 128, 22016, 32000, "config.json of codellama/CodeLlama-34b-Instruct-hf"),
    LmSpec("internvl2-1b", 24, 896, 14, 2, 64, 4864, 151655, "config.json of OpenGVLab/InternVL2-1B", tied_head=True),
    LmSpec("internvl3-2b", 28, 1536, 12, 2, 128, 8960, 151674, "config.json of OpenGVLab/InternVL3-2B", tied_head=True),
    # Every layer has 16 routed experts, of which a token visits one, and a shared one.
    LmSpec(
        "llama-4-scout",
        *(48, 5120, 40, 8, 128, 16384, 202048),
        "config.json of meta-llama/Llama-4-Scout-17B-16E-Instruct",
        experts=16,
        experts_per_token=1,
        expert_intermediate=8192,
        shared_intermediate=8192,
    ),
    LmSpec("llava-1.5-7b", 32, 4096, 32, 32, 128, 11008, 32064, "config.json of llava-hf/llava-1.5-7b-hf"),
)
"""Language models by name."""


def _qwen3_vision(size: str, out_hidden: int, *, small: bool) -> VisionSpec:
    depth, hidden, ffn = (24, 1024, 4096) if small else (27, 1152, 4304)
    return VisionSpec(f"qwen3-vl-{size}", depth, hidden, 16, ffn, 1536, 4, out_hidden, _QWEN3_VL, mergers=4)


def _qwen25_vision(size: str, out_hidden: int) -> VisionSpec:
    return VisionSpec(
        f"qwen2.5-vl-{size}",
        *(32, 1280, 16, 3420, 1176, 4),
        out_hidden,
        _QWEN25_VL,
        gated_ffn=True,
        full_attention_layers=4,
        window_patches=64,  # windows of 112 pixels, 8 patches of 14 a side
    )


VISIONS: Mapping[str, VisionSpec] = _by_name(
    _qwen3_vision("2b", 2048, small=True),
    _qwen3_vision("4b", 2560, small=True),
    _qwen3_vision("8b", 4096, small=False),
    _qwen3_vision("32b", 5120, small=False),
    _qwen3_vision("30b-a3b", 2048, small=False),
    _qwen3_vision("235b-a22b", 4096, small=False),
    _qwen25_vision("3b", 2048),
    _qwen25_vision("7b", 3584),
    _qwen25_vision("72b", 8192),
    VisionSpec("qwen2-vl-2b", 32, 1280, 16, 5120, 1176, 4, 1536, _QWEN2_VL),
    VisionSpec("qwen2-vl-7b", 32, 1280, 16, 5120, 1176, 4, 3584, _QWEN2_VL),
    # Pooling by position (3 x 3) before one projection; the feed-forward is gated as in the language model.
    VisionSpec(
        "gemma-4-31b", 27, 1152, 16, 4304, 768, 9, 5376, _GEMMA4, gated_ffn=True, merger_two_layers=False
    ),
    VisionSpec("internvl2-1b", 24, 1024, 16, 4096, 588, 4, 896, "config.json of OpenGVLab/InternVL2-1B (InternViT-300M)"),
    VisionSpec("internvl3-2b", 24, 1024, 16, 4096, 588, 4, 1536, "config.json of OpenGVLab/InternVL3-2B (InternViT-300M)"),
    VisionSpec(
        "llama-4-scout", 34, 1408, 16, 5632, 588, 4, 5120, "config.json of meta-llama/Llama-4-Scout-17B-16E-Instruct"
    ),
    VisionSpec("kimi-vl-a3b", 27, 1152, 16, 4304, 588, 4, 2048, _KIMI),
    VisionSpec(
        "llava-1.5-7b", 24, 1024, 16, 4096, 588, 1, 4096, "config.json of llava-hf/llava-1.5-7b-hf (CLIP ViT-L/14 at 336)"
    ),
)  # fmt: skip
"""Vision towers by the name of the model they belong to."""


def lm_spec(name: str) -> LmSpec:
    """Look a language model up; case, an organisation before a slash and a suffix `-instruct` or `-it` are ignored.

    Raises:
        InputError: When the name is unknown.
    """
    return _find(LMS, name, "language model")


def vision_spec(name: str) -> VisionSpec:
    """Look a vision tower up by its model's name, written as for `lm_spec`.

    Raises:
        InputError: When the name is unknown.
    """
    return _find(VISIONS, name, "vision tower")


def plain_name(name: str) -> str:
    """The short form of a checkpoint's name: `Qwen/Qwen3-VL-8B-Instruct` becomes `qwen3-vl-8b`."""
    return name.rsplit("/", 1)[-1].lower().removesuffix("-instruct").removesuffix("-it")


def _find(table: Mapping[str, _SpecT], name: str, kind: str) -> _SpecT:
    found = table.get(plain_name(name))
    if found is None:
        raise InputError(f"{kind} {name!r}", "not known", f"use one of {', '.join(table)}")
    return found
