"""Runs of a scenario: each builds its fleet anew, so that no run can disturb another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from epdsim.core.request import WARM_UP
from epdsim.core.rules import IDEAL, Dialect
from epdsim.cost.lm import LmCost
from epdsim.cost.spec import build_encode, build_link, build_lm, build_render
from epdsim.events import Sink
from epdsim.fleet import EncodePool, EnginePool, FleetConfig, FleetCosts, LinkSharing, RenderPool, simulate
from epdsim.media import Family, family
from epdsim.report.metrics import MetricsSink, RunMetrics
from epdsim.scenario.faults import build_faults
from epdsim.scenario.fit import Fit, fit_constants
from epdsim.scenario.goodput import find_goodput, searches_goodput
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point
from epdsim.scenario.schema import CostsSpec, EnginePoolSpec, ScenarioSpec
from epdsim.scenario.slo import SloGuard
from epdsim.workload import Workload, build_workload

if TYPE_CHECKING:
    from epdsim.spec import Judge, Property, Verdict

GIB = 1 << 30
C = TypeVar("C")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run.

    Attributes:
        point: Its axis values.
        metrics: Its figures.
        assumptions: What the workload had to assume, in sentences.
        judged: What the monitors say of it, by property; None when nobody asked.
    """

    point: Point
    metrics: RunMetrics
    assumptions: tuple[str, ...]
    judged: Mapping[str, Verdict] | None = None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """All runs of a scenario, and the constants that were fitted for them."""

    scenario: Scenario
    seed: int
    runs: tuple[RunResult, ...]
    fit: Fit | None


def run_scenario(
    scenario: Scenario,
    *,
    seed: int | None = None,
    sinks_for: Callable[[Point], Sequence[Sink]] = lambda _: (),
    on_run: Callable[[Point], None] = lambda _: None,
    wants_detail: bool = False,
    is_judged: bool = False,
) -> ScenarioResult:
    """Fit what the file asks to fit, then run every point.

    Args:
        scenario: A loaded file.
        seed: In place of the file's.
        sinks_for: Further takers of a run's events.
        on_run: Told each point before it runs.
        wants_detail: Make the events of detail too, step by step.
        is_judged: Let the monitors judge each run as it goes.

    Raises:
        InputError: A point cannot be built, which is found before any of them runs, or a line of a trace cannot be used.
    """
    chosen = scenario.spec.seed if seed is None else seed
    for point in scenario.points:
        build_point(scenario, point, chosen)
    fit = None
    if scenario.spec.fit is not None:
        fit = fit_constants(scenario, lambda point, constants: _measure(scenario, point, chosen, constants).metrics)
    runs: list[RunResult] = []
    for point in scenario.points:
        on_run(point)
        constants = fit.constants if fit else None
        sinks = sinks_for(point)
        runs.append(_measure(scenario, point, chosen, constants, sinks, wants_detail=wants_detail, is_judged=is_judged))
    return ScenarioResult(scenario, chosen, tuple(runs), fit)


def _measure(
    scenario: Scenario,
    point: Point,
    seed: int,
    constants: Mapping[str, float] | None,
    sinks: Sequence[Sink] = (),
    *,
    wants_detail: bool = False,
    is_judged: bool = False,
) -> RunResult:
    """Run a point; at its goodput where the file asks for it and the point leaves the rate open. Sinks see that run alone."""
    wanted, slo = scenario.spec.goodput, scenario.spec.slo
    if wanted is None or not searches_goodput(scenario.spec, point):
        return run_point(scenario, point, seed, constants, sinks, wants_detail=wants_detail, is_judged=is_judged)

    def at_rate(rate: float) -> dict[str, float]:
        return {**(constants or {}), wanted.key: rate}

    def guarded(rate: float) -> RunMetrics:
        guard = SloGuard(slo, count_requests(scenario, point, seed, at_rate(rate)))
        return run_point(scenario, point, seed, at_rate(rate), [guard]).metrics

    found = find_goodput(wanted, slo, guarded)
    constants = at_rate(found.rate)
    run = run_point(scenario, point, seed, constants, sinks, wants_detail=wants_detail, is_judged=is_judged)
    return replace(run, metrics=found.put_into(run.metrics))


def count_requests(scenario: Scenario, point: Point, seed: int, constants: Mapping[str, float] | None = None) -> int:
    """Requests of a workload that are no warm-up."""
    return sum(one.slo_class != WARM_UP for one in build_point(scenario, point, seed, constants).workload)


def run_point(
    scenario: Scenario,
    point: Point,
    seed: int,
    constants: Mapping[str, float] | None = None,
    sinks: Sequence[Sink] = (),
    *,
    wants_detail: bool = False,
    is_judged: bool = False,
    stretch_s: tuple[float, float] | None = None,
) -> RunResult:
    """Run one point of a scenario.

    Args:
        scenario: A loaded file.
        point: Its axis values.
        seed: Of all random streams.
        constants: Further settings by dotted key.
        sinks: Further takers of its events.
        wants_detail: Make the events of detail too, step by step.
        is_judged: Let the monitors judge it as it goes; alone, they are told steps that decide nothing by the stride.
        stretch_s: Run the requests that arrive from there to there only, in seconds.
    """
    built = build_point(scenario, point, seed, constants)
    if stretch_s is not None:
        built = replace(built, workload=built.workload.between(*stretch_s))
    metrics, judge = MetricsSink(), _judge(built.fleet) if is_judged else None
    simulate(
        built.fleet,
        built.family,
        built.workload,
        [metrics, *([judge] if judge is not None else []), *sinks],
        concurrency=built.workload.concurrency,
        keeps_arrivals=built.workload.keeps_arrivals,
        wants_detail=wants_detail or is_judged,
        takes_strides=not wants_detail,
    )
    told = built.workload.assumptions
    return RunResult(point, metrics.result(), (told,) if told else (), judge.verdicts() if judge is not None else None)


def _judge(fleet: FleetConfig) -> Judge:
    from epdsim.spec import Judge  # noqa: PLC0415 - who is not judged starts sooner without the register

    return Judge(laws_of(fleet))


def laws_of(fleet: FleetConfig) -> Iterable[Property]:
    """What a fleet is judged by: that nothing is sent in vain only where it was not told to send everything."""
    from epdsim.spec import OF_FLEETS  # noqa: PLC0415 - as above

    pools = filter(None, (fleet.prefill, fleet.decode))
    sends_all = any(pool.scheduler.strip == "off" for pool in pools)
    return (one for one in OF_FLEETS if not (sends_all and one.id == "STRIP-MAX"))


@dataclass(frozen=True, slots=True)
class BuiltPoint:
    """What one run consists of."""

    fleet: FleetConfig
    family: Family
    workload: Workload


def build_point(
    scenario: Scenario, point: Point, seed: int, constants: Mapping[str, float] | None = None
) -> BuiltPoint:
    """Fleet, family and workload of one point, from its validated description.

    Raises:
        InputError: A name or a file that the description gives cannot be used; with line and key.
    """
    spec = scenario.at(point, constants)
    with scenario.placed("family"):
        built = family(spec.family)
    with scenario.placed("family_options"):
        built = family(spec.family, **spec.family_options)
    with scenario.placed("workload"):
        workload = build_workload(spec.workload, scenario.folder, seed)
    return BuiltPoint(_fleet(scenario, spec, uses_mrope=built.uses_mrope), built, workload)


def _fleet(scenario: Scenario, spec: ScenarioSpec, *, uses_mrope: bool) -> FleetConfig:
    fleet = spec.fleet
    consumes, generates_apart = fleet.topology.startswith("e+"), fleet.topology.endswith("p+d")
    with scenario.placed("fleet", "dialect"):
        dialect = _dialect(fleet.dialect)
    prefill_lm = _cost(scenario, "lm", build_lm, spec.costs.lm)
    decode_lm = _cost(scenario, "decode_lm", build_lm, spec.costs.decode_lm) if spec.costs.decode_lm else prefill_lm

    def pool(described: EnginePoolSpec, lm: LmCost, ec_role: str) -> EnginePool:
        config = described.scheduler.build(uses_mrope=uses_mrope, ec_role=ec_role)
        return EnginePool(described.count, config, described.tp, lm, described.lockstep, described.router)

    return FleetConfig(
        topology=fleet.topology,
        render=RenderPool(fleet.render.count, int(fleet.render.cache_gib * GIB)),
        prefill=pool(fleet.prefill, prefill_lm, "consumer" if consumes else "none"),
        decode=pool(fleet.decode, decode_lm, "none") if generates_apart else None,
        encode=EncodePool(fleet.encode.count, fleet.encode.max_batch_items, fleet.encode.router) if consumes else None,
        costs=_costs(scenario, spec.costs),
        orchestrator=fleet.orchestrator,
        max_leg_items=fleet.max_leg_items,
        prefill_payload=fleet.prefill_payload,
        router=fleet.router,
        router_stale_ms=fleet.router_stale_ms,
        ec_capacity_bytes=None if fleet.ec_capacity_gib is None else int(fleet.ec_capacity_gib * GIB),
        dialect=dialect,
        faults=build_faults(scenario, spec) if spec.faults is not None else None,
    )


def _dialect(name: str) -> Dialect:
    if name == IDEAL.name:
        return IDEAL
    from epdsim.core.releases.dialects import named  # noqa: PLC0415 - its table brings the modules of all rules

    return named(name)


def _costs(scenario: Scenario, costs: CostsSpec) -> FleetCosts:
    return FleetCosts(
        render=_cost(scenario, "render", build_render, costs.render),
        encode=_cost(scenario, "encode", build_encode, costs.encode),
        broadcast=costs.broadcast.build(),
        hop_ms=costs.hop_ms,
        body_link=_cost(scenario, "body_link", build_link, costs.body_link),
        ec_link=_cost(scenario, "ec_link", build_link, costs.ec_link),
        kv_link=_cost(scenario, "kv_link", build_link, costs.kv_link),
        kv_bytes_per_token=costs.kv_bytes_per_token,
        sharing=LinkSharing(
            costs.body_link.sharing or "none", costs.ec_link.sharing or "none", costs.kv_link.sharing or "instance"
        ),
    )


def _cost(scenario: Scenario, key: str, build: Callable[[D, Path], C], described: D) -> C:
    """A cost model from its description; tables that it names are relative to the scenario file."""
    with scenario.placed("costs", key):
        return build(described, scenario.folder)
