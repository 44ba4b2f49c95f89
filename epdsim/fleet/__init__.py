"""SimPy processes: each calls the core, adds time and emits events."""

from epdsim.fleet.composer import PREFILL_PAYLOADS
from epdsim.fleet.config import (
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
