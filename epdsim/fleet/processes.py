"""A run as SimPy processes and plans, whatever the workload."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

import simpy

from epdsim.fleet.clock import begin, run
from epdsim.fleet.config import EncodePool, EnginePool
from epdsim.fleet.ec.kinds import EC_KINDS, Sides
from epdsim.fleet.encode import EncodeInstance
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import Faults, LinkName, Pace, Span
from epdsim.fleet.grid import on_grid
from epdsim.fleet.health import Evictable, Health, Mortal, evict
from epdsim.fleet.lines import Lines
from epdsim.fleet.lockstep import Lockstep
from epdsim.fleet.orchestrators import ORCHESTRATORS, Orchestrator
from epdsim.fleet.orchestrators.calls import Calls
from epdsim.fleet.orchestrators.encoding import Encoding
from epdsim.fleet.render import Renderer
from epdsim.fleet.telling import fleet_started
from epdsim.fleet.world import World
from epdsim.media import Family
from epdsim.workload.request import WorkloadRequest


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
        begin(world.env, _open_loop(world, orchestrator, source))
    else:
        # A user without a request to begin with would never have one: however many are stated, only so many are made.
        for first in islice(source, concurrency):
            user = _closed_loop(world, orchestrator, chain([first], source), keeps_arrivals=keeps_arrivals)
            begin(world.env, user)
    run(world.env)
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
        begin(world.env, orchestrator.handle(request))


def _closed_loop(
    world: World, orchestrator: Orchestrator, source: Iterable[WorkloadRequest], *, keeps_arrivals: bool
) -> Generator[simpy.Event, Any, None]:
    """One user; the next request goes to whoever is free first, as through a gate in front of all."""
    for request in source:
        if keeps_arrivals and (left_ms := on_grid(request.arrival_ms) - world.env.now) > 0:
            yield world.after(left_ms)
        yield from orchestrator.handle(request)
