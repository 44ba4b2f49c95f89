"""One run: a fleet, a workload, and the events that come of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epdsim.core.errors import InputError
from epdsim.events import Sink
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.express import TextFleet, can_carry
from epdsim.fleet.telling import to_all
from epdsim.media import Family
from epdsim.workload.request import WorkloadRequest


def simulate(
    config: FleetConfig,
    family: Family,
    requests: Iterable[WorkloadRequest],
    sinks: Sequence[Sink],
    *,
    concurrency: int | None = None,
    keeps_arrivals: bool = False,
    wants_detail: bool = False,
    takes_strides: bool | None = None,
) -> float:
    """Run a workload through a fleet until every request has ended.

    Args:
        config: The fleet.
        family: The model family that renders.
        requests: In order of arrival; read as they arrive, never held. What can be read again, and does not say of itself that it
            is text, is read once before, up to the first request that speaks against the fast way for text (`can_carry`).
        sinks: Take every event.
        concurrency: For a closed loop: as many requests as this are in the system.
        keeps_arrivals: Whether a closed loop sends no request before its arrival time; otherwise these are ignored.
        wants_detail: Make the events of detail too.
        takes_strides: Let engines take many steps at once where these decide nothing; the outcome is the same (FWD-EQ). By default
            unless detail is wanted, so that each step is told.

    Returns:
        The simulated milliseconds at which the last event happened.
    """
    if takes_strides is None:
        takes_strides = not wants_detail
    _check_sharing(config)
    if takes_strides and can_carry(config, requests):
        text = TextFleet(config, to_all(sinks), wants_detail=wants_detail)
        return text.run(requests, concurrency, keeps_arrivals=keeps_arrivals)
    from epdsim.fleet.processes import simulate_in  # noqa: PLC0415 - brings SimPy and schedulers, which text goes without
    from epdsim.fleet.world import World  # noqa: PLC0415 - as above

    world = World(config, sinks, wants_detail=wants_detail, takes_strides=takes_strides)
    return simulate_in(world, family, requests, concurrency, keeps_arrivals=keeps_arrivals)


def _check_sharing(config: FleetConfig) -> None:
    """What cannot wait for an end that is not known when a transfer is sent."""
    costs = config.costs
    if costs.sharing.ec.startswith("fair") and config.encode is not None and config.ec.kind == "store":
        rule = "embeddings are read from a store within a step, whose end must be known when it begins"
        raise InputError(
            f"ec_link.sharing {costs.sharing.ec!r}", rule, "use fleet.ec of kind pull or push, or another sharing"
        )
    if costs.sharing.kv.startswith("fair") and config.orchestrator == "decode_first" and costs.kv_layers > 1:
        rule = "layers are pushed while a prompt is computed, of which a fair line keeps no account"
        raise InputError(f"kv_link.sharing {costs.sharing.kv!r}", rule, "use kv_layers 1, or another sharing")
