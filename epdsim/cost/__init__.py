"""How long things take: encode, step, link, serialise and broadcast.

The forms that scenario files take are in `epdsim.cost.spec`.
"""

from typing import TYPE_CHECKING

from epdsim.core.lazy import names_in

__all__ = [
    "BroadcastLoad",
    "BroadcastProfile",
    "BroadcastTime",
    "EncodeCost",
    "Gpu",
    "LinearEncode",
    "LinearLm",
    "Link",
    "LmCost",
    "LmSpec",
    "RenderCost",
    "RooflineEncode",
    "RooflineLm",
    "StepLoad",
    "TableEncode",
    "TableLm",
    "VisionSpec",
    "broadcast_ms",
    "chunk_pairs",
    "fit_linear",
    "gpu",
    "lm_spec",
    "named_link",
    "vision_spec",
]

if TYPE_CHECKING:
    from epdsim.cost.broadcast import BroadcastLoad, BroadcastProfile, BroadcastTime, broadcast_ms
    from epdsim.cost.encode import EncodeCost, LinearEncode, RooflineEncode, TableEncode
    from epdsim.cost.hardware import Gpu, gpu
    from epdsim.cost.link import Link, named_link
    from epdsim.cost.lm import LinearLm, LmCost, RooflineLm, StepLoad, chunk_pairs
    from epdsim.cost.lm_table import TableLm, fit_linear
    from epdsim.cost.models import LmSpec, VisionSpec, lm_spec, vision_spec
    from epdsim.cost.render import RenderCost
else:
    __getattr__, __dir__ = names_in(
        __name__, ("broadcast", "link", "render", "hardware", "models", "lm", "encode", "lm_table"), __all__
    )
