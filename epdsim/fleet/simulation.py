"""One run: a fleet, a workload, and the events that come of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import simpy

from epdsim.core.errors import InputError
from epdsim.events import Sink
from epdsim.fleet.config import EncodePool, EnginePool, FleetConfig
from epdsim.fleet.ec.kinds import EC_KINDS, Sides
from epdsim.fleet.encode import EncodeInstance
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.express import TextFleet, can_carry
from epdsim.fleet.faults import Evictable, Faults, Health, LinkName, Mortal, Pace, Span, evict
from epdsim.fleet.lines import Lines
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.orchestrators import ORCHESTRATORS, Orchestrator
from epdsim.fleet.orchestrators.calls import Calls
from epdsim.fleet.orchestrators.encoding import Encoding
from epdsim.fleet.render import Renderer
from epdsim.fleet.telling import fleet_started
from epdsim.fleet.world import World, on_grid, to_all
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
    _check_sharing(config)
    if takes_strides and can_carry(config, requests):
        text = TextFleet(config, to_all(sinks), wants_detail=wants_detail)
        return text.run(requests, concurrency, keeps_arrivals=keeps_arrivals)
    world = World(config, sinks, wants_detail=wants_detail, takes_strides=takes_strides)
    return simulate_in(world, family, requests, concurrency, keeps_arrivals=keeps_arrivals)


def simulate_in(
    world: World,
    family: Family,
    requests: Iterable[WorkloadRequest],
    concurrency: int | None = None,
    *,
    keeps_arrivals: bool = False,
) -> float:
    """The same as processes and plans, whatever the workload; what `TextFleet` is held against."""
    orchestrator = _build(world, family)
    source = iter(requests)
    if concurrency is None:
        world.env.begin(_open_loop(world, orchestrator, source))
    else:
        # A user without a request to begin with would never have one: however many are stated, only so many are made.
        for first in islice(source, concurrency):
            user = _closed_loop(world, orchestrator, chain([first], source), keeps_arrivals=keeps_arrivals)
            world.env.begin(user)
    world.env.run()
    orchestrator.fail_stuck()
    return float(world.env.now)


def _build(world: World, family: Family) -> Orchestrator:
    config, faults, sharing = world.config, world.config.faults, world.config.costs.sharing
    slow: Mapping[LinkName, Sequence[Span]] = (faults.links or {}) if faults is not None else {}
    paces: Mapping[LinkName, Pace] = {kind: Pace(spans) for kind, spans in slow.items()}
    body = Lines(world, "body", config.costs.body_link, sharing.body, paces)
    ec = Lines(world, "ec", config.costs.ec_link, sharing.ec, paces)
    kv = Lines(world, "kv", config.costs.kv_link, sharing.kv, paces)
    prefix = "prefill" if config.decode or config.encode else "engine"
    if world.wants_detail:
        world.emit(fleet_started(config, prefix))
    kind = EC_KINDS[config.ec.kind]
    sides = kind.sides(world)
    prefill = _engines(world, prefix, config.prefill, sides, ec if config.encode is not None else None)
    style = ORCHESTRATORS[config.orchestrator]
    decode = (
        _engines(world, "decode", _with_role(config.decode, style.decode_role), sides, None) if config.decode else []
    )
    health = Health(world, faults) if faults is not None else None
    calls = Calls(world, prefill, decode, body, kv, health)
    encoding = None
    if config.encode is not None:
        encoding = kind.encoding(world, body, health, style.group(config), shares_legs=style.shares_legs)
        encoding.encoders = _encoders(world, config.encode, sides, encoding)
    orchestrator = style.kind(world, Renderer(family, config.dialect, world.notices), calls, encoding)
    if faults is not None and health is not None:
        encoders = encoding.encoders if encoding is not None else ()
        _expect(world, faults, health, [*calls.engines, *encoders], sides.keepers)
    return orchestrator


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


def _with_role(pool: EnginePool, kv_role: str) -> EnginePool:
    return pool if kv_role == "none" else replace(pool, scheduler=replace(pool.scheduler, kv_role=kv_role))


def _encoders(world: World, pool: EncodePool, sides: Sides, encoding: Encoding) -> list[EncodeInstance]:
    names = [f"encode-{index}" for index in range(pool.count)]
    return [EncodeInstance(world, name, pool, sides.producer(name), encoding.encode_again) for name in names]


def _expect(
    world: World, faults: Faults, health: Health, all_instances: Sequence[Mortal], keepers: Sequence[Evictable]
) -> None:
    """Begin the processes of all that will go wrong."""
    for instance in all_instances:
        losses = sorted((loss for loss in faults.losses if loss.instance == instance.name), key=lambda loss: loss.at_ms)
        if losses:
            world.env.process(health.watch(losses, instance))
    for at_ms in faults.ec_evictions_ms:
        world.env.process(evict(world, at_ms, keepers))


def _engines(world: World, prefix: str, pool: EnginePool, sides: Sides, ec: Lines | None) -> list[EngineInstance]:
    """The engines of a pool; embeddings come to them over lines, if any do."""
    lockstep = Lockstep(world) if pool.lockstep else None
    names = [f"{prefix}-{index}" for index in range(pool.count)]
    made: list[EngineInstance] = []
    for name in names:
        consume = None if ec is None else partial(sides.consumer, line=ec.to(name))
        made.append(EngineInstance(world, name, pool, consume, lockstep))
    return made


def _open_loop(
    world: World, orchestrator: Orchestrator, source: Iterable[WorkloadRequest]
) -> Generator[simpy.Event, Any, None]:
    for request in source:
        if (left_ms := on_grid(request.arrival_ms) - world.env.now) > 0:
            yield world.after(left_ms)
        world.env.begin(orchestrator.handle(request))


def _closed_loop(
    world: World, orchestrator: Orchestrator, source: Iterable[WorkloadRequest], *, keeps_arrivals: bool
) -> Generator[simpy.Event, Any, None]:
    """One user; the next request goes to whoever is free first, as through a gate in front of all."""
    for request in source:
        if keeps_arrivals and (left_ms := on_grid(request.arrival_ms) - world.env.now) > 0:
            yield world.after(left_ms)
        yield from orchestrator.handle(request)
