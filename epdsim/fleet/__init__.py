"""SimPy processes: each calls the core, adds time and emits events."""

from typing import TYPE_CHECKING

from epdsim.core.lazy import names_in

__all__ = [
    "ORCHESTRATORS",
    "PREFILL_PAYLOADS",
    "ROUTERS",
    "TOPOLOGIES",
    "EcConfig",
    "EncodePool",
    "EnginePool",
    "Faults",
    "FleetConfig",
    "FleetCosts",
    "LinkName",
    "LinkSharing",
    "Loss",
    "RenderPool",
    "RenderedRequest",
    "Renderer",
    "Span",
    "simulate",
]

if TYPE_CHECKING:
    from epdsim.fleet.config import (
        PREFILL_PAYLOADS,
        TOPOLOGIES,
        EcConfig,
        EncodePool,
        EnginePool,
        FleetConfig,
        FleetCosts,
        LinkSharing,
        RenderPool,
    )
    from epdsim.fleet.faults import Faults, LinkName, Loss, Span
    from epdsim.fleet.orchestrators import ORCHESTRATORS
    from epdsim.fleet.render import RenderedRequest, Renderer
    from epdsim.fleet.routing import ROUTERS
    from epdsim.fleet.simulation import simulate
else:
    __getattr__, __dir__ = names_in(
        __name__, ("config", "faults", "routing", "render", "orchestrators", "simulation"), __all__
    )
