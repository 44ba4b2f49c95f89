"""One run: a fleet, a workload, and the events that come of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import chain, islice
from typing import Any

import simpy

from epdsim.events import Sink
from epdsim.fleet.config import EnginePool, FleetConfig
from epdsim.fleet.encode import EncodeInstance
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.orchestrator import Orchestrator
from epdsim.fleet.render import Renderer
from epdsim.fleet.telling import fleet_started
from epdsim.fleet.world import World, on_grid
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
        requests: In order of arrival; read as they arrive, never held.
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
    world = World(config, sinks, wants_detail=wants_detail, takes_strides=takes_strides)
    orchestrator = _build(world, family)
    source = iter(requests)
    if concurrency is None:
        world.env.process(_open_loop(world, orchestrator, source))
    else:
        # A user without a request to begin with would never have one: however many are stated, only so many are made.
        for first in islice(source, concurrency):
            user = _closed_loop(world, orchestrator, chain([first], source), keeps_arrivals=keeps_arrivals)
            world.env.process(user)
    world.env.run()
    orchestrator.fail_stuck()
    return float(world.env.now)


def _build(world: World, family: Family) -> Orchestrator:
    config = world.config
    prefix = "prefill" if config.decode or config.encode else "engine"
    if world.wants_detail:
        world.emit(fleet_started(config, prefix))
    prefill = _engines(world, prefix, config.prefill)
    decode = _engines(world, "decode", config.decode) if config.decode else []
    encode = (
        [
            EncodeInstance(world, f"encode-{index}", config.encode.max_batch_items)
            for index in range(config.encode.count)
        ]
        if config.encode
        else []
    )
    return Orchestrator(world, Renderer(family, config.dialect, world.notices), prefill, decode, encode)


def _engines(world: World, prefix: str, pool: EnginePool) -> list[EngineInstance]:
    lockstep = Lockstep(world) if pool.lockstep else None
    return [EngineInstance(world, f"{prefix}-{index}", pool, lockstep) for index in range(pool.count)]


def _open_loop(
    world: World, orchestrator: Orchestrator, source: Iterable[WorkloadRequest]
) -> Generator[simpy.Event, Any, None]:
    for request in source:
        if (left_ms := on_grid(request.arrival_ms) - world.env.now) > 0:
            yield world.after(left_ms)
        world.env.process(orchestrator.handle(request))


def _closed_loop(
    world: World, orchestrator: Orchestrator, source: Iterable[WorkloadRequest], *, keeps_arrivals: bool
) -> Generator[simpy.Event, Any, None]:
    """One user; the next request goes to whoever is free first, as through a gate in front of all."""
    for request in source:
        if keeps_arrivals and (left_ms := on_grid(request.arrival_ms) - world.env.now) > 0:
            yield world.after(left_ms)
        yield from orchestrator.handle(request)
