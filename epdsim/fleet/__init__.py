"""SimPy processes: each calls the core, adds time and emits events."""

from epdsim.fleet.composer import PREFILL_PAYLOADS
from epdsim.fleet.config import (
    TOPOLOGIES,
    EncodePool,
    EnginePool,
    FleetConfig,
    FleetCosts,
    RenderPool,
)
from epdsim.fleet.render import RenderedRequest, Renderer
from epdsim.fleet.routing import ROUTERS
from epdsim.fleet.simulation import simulate

__all__ = [
    "PREFILL_PAYLOADS",
    "ROUTERS",
    "TOPOLOGIES",
    "EncodePool",
    "EnginePool",
    "FleetConfig",
    "FleetCosts",
    "RenderPool",
    "RenderedRequest",
    "Renderer",
    "simulate",
]
