"""How long the vision tower takes for a batch of items."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from epdsim.core.errors import InputError
from epdsim.cost.checks import non_negative
from epdsim.cost.curve import Curve, mean_by_x, rising
from epdsim.cost.efficiency import EncodeEfficiency, encode_efficiency
from epdsim.cost.hardware import Gpu, gpu
from epdsim.cost.models import BF16_BYTES, VisionSpec, vision_spec
from epdsim.cost.nnls import relative_nnls
from epdsim.cost.tables import ANY, EncodeRow, Selection, read_encode_rows


class EncodeCost(Protocol):
    """Anything that says how long an encoder run takes."""

    def encode_ms(self, patches_per_item: Sequence[int]) -> float:
        """Milliseconds for the items in one batch; 0 for none.

        Args:
            patches_per_item: Input patches (before merging) of each item.
        """
        ...


class LinearEncode:
    """A sum of terms: per run, per item, per patch and per pair of patches of one item.

    Raises:
        InputError: When a coefficient is negative or not finite.
    """

    __slots__ = ("fixed_ms", "item_ms", "pair_ms", "patch_ms")

    def __init__(self, *, fixed_ms: float, patch_ms: float, pair_ms: float = 0.0, item_ms: float = 0.0) -> None:
        self.fixed_ms = non_negative("fixed_ms", fixed_ms)
        self.patch_ms = non_negative("patch_ms", patch_ms)
        self.pair_ms = non_negative("pair_ms", pair_ms)
        self.item_ms = non_negative("item_ms", item_ms)

    def encode_ms(self, patches_per_item: Sequence[int]) -> float:
        """Milliseconds of the run."""
        if not patches_per_item:
            return 0.0
        patches = sum(patches_per_item)
        pairs = sum(n * n for n in patches_per_item)
        return self.fixed_ms + self.item_ms * len(patches_per_item) + self.patch_ms * patches + self.pair_ms * pairs


class RooflineEncode:
    """Operations and weights of a vision tower over the rates of a GPU, with fitted efficiencies.

    Projections of all patches of the run are a smooth maximum of operations and of weights read once; attention among the patches
    of each item, quadratic in its patches, adds to it, and so does launch overhead. A run that is no CUDA graph takes as long as
    its launches at least.

    Args:
        tower: A vision tower or the name of its model.
        gpu_type: A GPU or its name.
        tp: GPUs of the instance.
        tp_mode: `weights` splits the tower over the GPUs, which does not make it faster (Qwen2.5-VL-72B on H20, 4 images: 492, 466
            and 524 ms at TP 2, 4 and 8, SGLang blog 2026-01-12); `data` deals whole items to the GPUs, so that the run takes the
            even share or the largest item, whichever is more (vLLM PR 23909).
        efficiency: The fitted constants; by default those of the GPU.

    Raises:
        InputError: When a name is unknown or `tp` below 1.
    """

    __slots__ = (
        "_attention_ms",
        "_eager_ms",
        "_fixed_ms",
        "_patch_ms",
        "_share",
        "_weights_ms",
        "_window",
        "_window_ms",
        "efficiency",
        "gpu",
        "tower",
    )

    def __init__(
        self,
        tower: VisionSpec | str,
        gpu_type: Gpu | str,
        tp: int = 1,
        *,
        tp_mode: Literal["weights", "data"] = "weights",
        efficiency: EncodeEfficiency | None = None,
    ) -> None:
        spec = vision_spec(tower) if isinstance(tower, str) else tower
        card = gpu(gpu_type) if isinstance(gpu_type, str) else gpu_type
        if tp < 1:
            raise InputError(f"tp = {tp}", "must be 1 or more")
        eff = efficiency or encode_efficiency(card.name)
        self.tower, self.gpu, self.efficiency = spec, card, eff
        flop_ms = eff.factor * 1e3 / card.bf16_flops
        patch_flops = 2 * (spec.layer_parameters + spec.merger_parameters / spec.merge)
        self._patch_ms = patch_flops * flop_ms / eff.mfu
        weights = BF16_BYTES * spec.parameters
        self._weights_ms = eff.factor * weights * 1e3 / (card.hbm_bytes_per_s * eff.weight_bandwidth)
        pair_ms = 4 * spec.hidden * flop_ms / eff.mfu_attention
        self._attention_ms = pair_ms * spec.full_layers
        self._window_ms, self._window = pair_ms * (spec.depth - spec.full_layers), spec.window_patches
        self._fixed_ms = eff.factor * (eff.fixed_ms + spec.depth * eff.layer_us * 1e-3)
        self._eager_ms = spec.depth * eff.eager_us * 1e-3
        self._share = 1 / tp if tp_mode == "data" else 1.0

    def encode_ms(self, patches_per_item: Sequence[int]) -> float:
        """Milliseconds of the run."""
        if not patches_per_item:
            return 0.0
        largest = max(patches_per_item)
        patches = max(largest, self._share * sum(patches_per_item))
        pairs = max(largest * largest, self._share * sum(n * n for n in patches_per_item))
        step = self._fixed_ms + hypot(self._patch_ms * patches, self._weights_ms) + self._attention_ms * pairs
        if self._window:
            step += self._window_ms * min(pairs, patches * self._window)
        return max(step, self._eager_ms)


class TableEncode:
    """Interpolates measured or modelled encoder runs.

    The rows are split into attention (a fitted time per pair of patches of one item) and the rest, a curve over all patches of the
    run, so that a batch of unequal items costs what its parts cost.

    Raises:
        InputError: When there are fewer than three rows.
    """

    __slots__ = ("_curve", "_pair_ms")

    def __init__(self, rows: Sequence[EncodeRow]) -> None:
        if len(rows) < 3:
            raise InputError("encoder table", "needs three rows or more")
        self._pair_ms = fit_linear_encode(rows).pair_ms
        rest = [(r.num_images * r.patches_per_image, max(r.encoder_ms - self._pair_ms * _pairs(r), 0.0)) for r in rows]
        self._curve = Curve(rising(mean_by_x(rest)))

    @classmethod
    def from_csv(cls, path: Path, which: Selection = ANY) -> TableEncode:
        """Read the lines of one set-up.

        Raises:
            InputError: See `read_encode_rows`.
        """
        return cls(read_encode_rows(path, which))

    def encode_ms(self, patches_per_item: Sequence[int]) -> float:
        """Milliseconds of the run."""
        if not patches_per_item:
            return 0.0
        return self._curve.at(sum(patches_per_item)) + self._pair_ms * sum(n * n for n in patches_per_item)


def fit_linear_encode(rows: Sequence[EncodeRow]) -> LinearEncode:
    """The linear form with coefficients of zero or more that is nearest to the rows in relative error.

    Raises:
        InputError: When there is no row.
    """
    if not rows:
        raise InputError("encoder table", "has no rows")
    features = np.array([(1, r.num_images, r.num_images * r.patches_per_image, _pairs(r)) for r in rows], dtype=float)
    fixed, item, patch, pair = relative_nnls(features, np.array([r.encoder_ms for r in rows])).tolist()
    return LinearEncode(fixed_ms=fixed, item_ms=item, patch_ms=patch, pair_ms=pair)


def _pairs(row: EncodeRow) -> int:
    return row.num_images * row.patches_per_image**2
