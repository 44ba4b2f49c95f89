"""Costs as scenario files write them, and what turns them into cost models.

Each is told apart by `kind`. Unknown keys are refused; a table's `csv` is relative to the scenario file.
"""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from epdsim.cost.blis import BlisRooflineLm, BlisTrainedLm
from epdsim.cost.efficiency import FP8_MEASURED, encode_efficiency, lm_efficiency
from epdsim.cost.encode import EncodeCost, LinearEncode, RooflineEncode, TableEncode
from epdsim.cost.hardware import gpu
from epdsim.cost.link import Link, named_link
from epdsim.cost.lm import LinearLm, LmCost, Precision, RooflineLm
from epdsim.cost.lm_table import TableLm
from epdsim.cost.render import DECODE_MEGAPIXEL_MS, MEDIA_MS, PREPROCESS_CPU_MS, PREPROCESS_GPU_MS, RenderCost
from epdsim.cost.tables import Selection

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RooflineLmSpec(_Spec):
    """`RooflineLm`; the fields after `tp` replace constants of the GPU (`LmEfficiency`).

    Attributes:
        gpu: Name of a GPU; one that is unknown is answered with all names.
        tp: GPUs that share the model; null for the `tp` of the pool's engines, from which a scenario may not differ.
        weights: What the layers' weights are kept and multiplied in (vLLM's `--quantization fp8`); say the memory that it frees in
            `num_gpu_blocks`.
        kv_cache: What the KV cache is kept in (`--kv-cache-dtype`); say its size in `kv_bytes_per_token` and `num_gpu_blocks` too.
    """

    kind: Literal["roofline"] = "roofline"
    model: str
    gpu: str
    tp: _Count | None = None
    weights: Precision = "bf16"
    kv_cache: Precision = "bf16"
    mfu_prefill: _Positive | None = None
    mfu_decode: _Positive | None = None
    mfu_attention: _Positive | None = None
    weight_bandwidth: _Positive | None = None
    expert_bandwidth: _Positive | None = None
    kv_bandwidth: _Positive | None = None
    activation_passes: _NonNegative | None = None
    link_bandwidth: _Positive | None = None
    allreduce_us: _NonNegative | None = None
    fixed_ms: _NonNegative | None = None
    layer_us: _NonNegative | None = None
    request_us: _NonNegative | None = None
    fp8_mfu: _Positive | None = None
    fp8_bandwidth: _Positive | None = None

    @property
    def assumption(self) -> str:
        """What FP8 weights take from another GPU, in a sentence; empty where nothing is."""
        taken = [name for name in ("fp8_mfu", "fp8_bandwidth") if getattr(self, name) is None]
        if self.weights != "fp8" or gpu(self.gpu).name in FP8_MEASURED or not taken:
            return ""
        constants = lm_efficiency(gpu(self.gpu).name)
        shares = ", ".join(f"{name} {getattr(constants, name):g}" for name in taken)
        return f"weights: fp8 was not measured on {self.gpu}; the shares of an H100 stand in ({shares})"

    def build(self, base_dir: Path) -> LmCost:  # noqa: ARG002
        """The cost model."""
        given = self.model_dump(exclude={"kind", "model", "gpu", "tp", "weights", "kv_cache"}, exclude_none=True)
        constants = replace(lm_efficiency(gpu(self.gpu).name), **given)
        return RooflineLm(self.model, self.gpu, self.tp or 1, constants, weights=self.weights, kv_cache=self.kv_cache)


class LinearLmSpec(_Spec):
    """`LinearLm`: a step costs the sum of these.

    Attributes:
        fixed_ms: Per step.
        prefill_token_ms: Per prompt token computed.
        pair_ms: Per pair of a prompt token and a token that it attends to.
        decode_request_ms: Per request that generates.
        context_token_ms: Per token of context of the requests that generate.
    """

    kind: Literal["linear"]
    fixed_ms: _NonNegative
    prefill_token_ms: _NonNegative
    pair_ms: _NonNegative = 0.0
    decode_request_ms: _NonNegative = 0.0
    context_token_ms: _NonNegative = 0.0

    def build(self, base_dir: Path) -> LmCost:  # noqa: ARG002
        """The cost model."""
        return LinearLm(**self.model_dump(exclude={"kind"}))


class TableLmSpec(_Spec):
    """`TableLm`; `model`, `gpu` and `tp` choose lines where the table covers several set-ups.

    Attributes:
        csv: The measurements; a relative path starts at the scenario file.
        model: Lines of this model.
        gpu: Lines of this GPU.
        tp: Lines of so many GPUs; null for the `tp` of the pool's engines, from which a scenario may not differ.
    """

    kind: Literal["table"]
    csv: Path
    model: str | None = None
    gpu: str | None = None
    tp: _Count | None = None

    def build(self, base_dir: Path) -> LmCost:
        """The cost model."""
        return TableLm.from_csv(base_dir / self.csv, Selection(self.model, self.gpu, self.tp))


class BlisLmSpec(_Spec):
    """`BlisRooflineLm` or `BlisTrainedLm`.

    Attributes:
        tp: GPUs that share the model; null for the `tp` of the pool's engines, from which a scenario may not differ.
    """

    kind: Literal["blis"]
    fit: Literal["roofline", "trained"]
    model: str
    gpu: str
    tp: _Count | None = None

    def build(self, base_dir: Path) -> LmCost:  # noqa: ARG002
        """The cost model."""
        return (BlisRooflineLm if self.fit == "roofline" else BlisTrainedLm)(self.model, self.gpu, self.tp or 1)


class RooflineEncodeSpec(_Spec):
    """`RooflineEncode`; the fields after `tp_mode` replace constants of the GPU (`EncodeEfficiency`).

    Attributes:
        model: Name of the model whose vision tower it is.
        gpu: Name of a GPU; one that is unknown is answered with all names.
        tp: GPUs of what encodes: of an encode instance, or of an engine that encodes itself.
    """

    kind: Literal["roofline"] = "roofline"
    model: str
    gpu: str
    tp: _Count = 1
    tp_mode: Literal["weights", "data"] = "weights"
    mfu: _Positive | None = None
    mfu_attention: _Positive | None = None
    weight_bandwidth: _Positive | None = None
    fixed_ms: _NonNegative | None = None
    layer_us: _NonNegative | None = None
    eager_us: _NonNegative | None = None
    factor: _Positive | None = None

    def build(self, base_dir: Path) -> EncodeCost:  # noqa: ARG002
        """The cost model."""
        given = self.model_dump(exclude={"kind", "model", "gpu", "tp", "tp_mode"}, exclude_none=True)
        constants = replace(encode_efficiency(gpu(self.gpu).name), **given)
        return RooflineEncode(self.model, self.gpu, self.tp, tp_mode=self.tp_mode, efficiency=constants)


class LinearEncodeSpec(_Spec):
    """`LinearEncode`: an encoder run costs the sum of these.

    Attributes:
        fixed_ms: Per run.
        patch_ms: Per patch.
        pair_ms: Per pair of patches that attend to each other.
        item_ms: Per item.
    """

    kind: Literal["linear"]
    fixed_ms: _NonNegative
    patch_ms: _NonNegative
    pair_ms: _NonNegative = 0.0
    item_ms: _NonNegative = 0.0

    def build(self, base_dir: Path) -> EncodeCost:  # noqa: ARG002
        """The cost model."""
        return LinearEncode(**self.model_dump(exclude={"kind"}))


class TableEncodeSpec(_Spec):
    """`TableEncode`; `model` and `gpu` choose lines where the table covers several set-ups.

    Attributes:
        csv: The measurements; a relative path starts at the scenario file.
        model: Lines of this model.
        gpu: Lines of this GPU.
    """

    kind: Literal["table"]
    csv: Path
    model: str | None = None
    gpu: str | None = None

    def build(self, base_dir: Path) -> EncodeCost:
        """The cost model."""
        return TableEncode.from_csv(base_dir / self.csv, Selection(self.model, self.gpu))


class _RenderSpec(_Spec):
    decode_megapixel_ms: _NonNegative = 0.0
    media_ms: _NonNegative = 0.0
    hash_bytes_per_s: _Positive = 4e9
    fixed_ms: _NonNegative = 0.0
    item_ms: _NonNegative = 0.5
    text_token_us: _NonNegative = 1.0


class TableRenderSpec(_RenderSpec):
    """`RenderCost` over the published table, on `device`, times `scale`.

    Attributes:
        device: Where pictures are processed; each has a table of its own.
        decode_megapixel_ms: Per million pixels of a picture's file.
        media_ms: Per request with media.
    """

    kind: Literal["table"] = "table"
    device: Literal["cpu", "gpu"] = "cpu"
    scale: _Positive = 1.0
    decode_megapixel_ms: _NonNegative = DECODE_MEGAPIXEL_MS
    media_ms: _NonNegative = MEDIA_MS

    def build(self, base_dir: Path) -> RenderCost:  # noqa: ARG002
        """The cost model."""
        table = PREPROCESS_CPU_MS if self.device == "cpu" else PREPROCESS_GPU_MS
        return RenderCost(table, **self.model_dump(exclude={"kind", "device"}))


class LinearRenderSpec(_RenderSpec):
    """`RenderCost` with a time per image and per megapixel instead of a table.

    Attributes:
        image_ms: Per picture that the processor cache does not spare.
        megapixel_ms: Per million pixels of those.
    """

    kind: Literal["linear"]
    image_ms: _NonNegative
    megapixel_ms: _NonNegative

    def build(self, base_dir: Path) -> RenderCost:  # noqa: ARG002
        """The cost model."""
        table = ((1.0, self.image_ms + self.megapixel_ms * 1e-6), (1e6, self.image_ms + self.megapixel_ms))
        return RenderCost(table, **self.model_dump(exclude={"kind", "image_ms", "megapixel_ms"}))


class _LinkSpec(_Spec):
    sharing: Literal["none", "instance", "fleet", "fair-instance", "fair-fleet"] | None = None


class LinearLinkSpec(_LinkSpec):
    """`Link`.

    Attributes:
        sharing: Which transfers wait for each other, one after the other: none, those to one instance, or all of the fleet; by
            default `instance` for KV caches, `none` for others. With `fair-instance` and `fair-fleet` they go side by side, each
            with an equal part of the bandwidth.
    """

    kind: Literal["linear"] = "linear"
    bandwidth_bytes_per_s: _Positive
    latency_ms: _NonNegative = 0.0

    def build(self, base_dir: Path) -> Link:  # noqa: ARG002
        """The link."""
        return Link(self.bandwidth_bytes_per_s, self.latency_ms)


class NamedLinkSpec(_LinkSpec):
    """A link by name.

    Attributes:
        sharing: As with `linear`.
        name: `nvlink-h100`, `pcie-gen5`, `rdma-400g` and others; a name that is unknown is answered with all of them.
    """

    kind: Literal["named"]
    name: str

    def build(self, base_dir: Path) -> Link:  # noqa: ARG002
        """The link."""
        return named_link(self.name)


LmCostSpec = Annotated[RooflineLmSpec | LinearLmSpec | TableLmSpec | BlisLmSpec, Field(discriminator="kind")]
EncodeCostSpec = Annotated[RooflineEncodeSpec | LinearEncodeSpec | TableEncodeSpec, Field(discriminator="kind")]
RenderCostSpec = Annotated[TableRenderSpec | LinearRenderSpec, Field(discriminator="kind")]
LinkSpec = Annotated[LinearLinkSpec | NamedLinkSpec, Field(discriminator="kind")]


def build_lm(spec: LmCostSpec, base_dir: Path) -> LmCost:
    """The step cost that a scenario names.

    Raises:
        InputError: When a name is unknown or a table cannot be used.
    """
    return spec.build(base_dir)


def build_encode(spec: EncodeCostSpec, base_dir: Path) -> EncodeCost:
    """The encoder cost that a scenario names.

    Raises:
        InputError: When a name is unknown or a table cannot be used.
    """
    return spec.build(base_dir)


def build_render(spec: RenderCostSpec, base_dir: Path) -> RenderCost:
    """The render cost that a scenario names."""
    return spec.build(base_dir)


def build_link(spec: LinkSpec, base_dir: Path) -> Link:
    """The link that a scenario names.

    Raises:
        InputError: When the name is unknown.
    """
    return spec.build(base_dir)
