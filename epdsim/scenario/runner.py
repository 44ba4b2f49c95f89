"""Runs of a scenario: each builds its fleet anew, so that no run can disturb another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from epdsim.core.releases import named
from epdsim.cost.lm import LmCost
from epdsim.cost.spec import build_encode, build_link, build_lm, build_render
from epdsim.events import Sink
from epdsim.fleet import EncodePool, EnginePool, FleetConfig, FleetCosts, RenderPool, simulate
from epdsim.media import Family, family
from epdsim.report.metrics import MetricsSink, RunMetrics
from epdsim.scenario.fit import Fit, fit_constants
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point
from epdsim.scenario.schema import EnginePoolSpec, ScenarioSpec
from epdsim.workload import Workload, build_workload

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run.

    Attributes:
        point: Its axis values.
        metrics: Its figures.
        assumptions: What the workload had to assume, in sentences.
    """

    point: Point
    metrics: RunMetrics
    assumptions: tuple[str, ...]


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
) -> ScenarioResult:
    """Fit what the file asks to fit, then run every point.

    Args:
        scenario: A loaded file.
        seed: In place of the file's.
        sinks_for: Further takers of a run's events.
        on_run: Told each point before it runs.
        wants_detail: Make the events of detail too.
    """
    chosen = scenario.spec.seed if seed is None else seed
    fit = None
    if scenario.spec.fit is not None:
        fit = fit_constants(scenario, lambda point, constants: run_point(scenario, point, chosen, constants).metrics)
    runs: list[RunResult] = []
    for point in scenario.points:
        on_run(point)
        constants = fit.constants if fit else None
        runs.append(run_point(scenario, point, chosen, constants, sinks_for(point), wants_detail=wants_detail))
    return ScenarioResult(scenario, chosen, tuple(runs), fit)


def run_point(
    scenario: Scenario,
    point: Point,
    seed: int,
    constants: Mapping[str, float] | None = None,
    sinks: Sequence[Sink] = (),
    *,
    wants_detail: bool = False,
) -> RunResult:
    """Run one point of a scenario."""
    spec = scenario.at(point, constants)
    workload = workload_of(scenario, spec, seed)
    metrics = MetricsSink()
    simulate(
        fleet_config(spec, scenario),
        family_of(spec),
        workload,
        [metrics, *sinks],
        concurrency=workload.concurrency,
        wants_detail=wants_detail,
    )
    return RunResult(point, metrics.result(), (workload.assumptions,) if workload.assumptions else ())


def workload_of(scenario: Scenario, spec: ScenarioSpec, seed: int) -> Workload:
    """The workload of a run."""
    return build_workload(spec.workload, scenario.folder, seed)


def family_of(spec: ScenarioSpec) -> Family:
    """The model family of a run."""
    return family(spec.family, **spec.family_options)


def fleet_config(spec: ScenarioSpec, scenario: Scenario) -> FleetConfig:
    """The fleet of a run, from its validated description."""
    fleet, costs, folder = spec.fleet, spec.costs, scenario.folder
    uses_mrope = family_of(spec).uses_mrope
    consumes = fleet.topology.startswith("e+")
    generates_apart = fleet.topology.endswith("p+d")
    prefill_lm = build_lm(costs.lm, folder)
    decode_lm = build_lm(costs.decode_lm, folder) if costs.decode_lm else prefill_lm

    def pool(described: EnginePoolSpec, lm: LmCost, ec_role: str) -> EnginePool:
        config = described.scheduler.build(uses_mrope=uses_mrope, ec_role=ec_role)
        return EnginePool(described.count, config, described.tp, lm)

    return FleetConfig(
        topology=fleet.topology,
        render=RenderPool(fleet.render.count, int(fleet.render.cache_gib * GIB)),
        prefill=pool(fleet.prefill, prefill_lm, "consumer" if consumes else "none"),
        decode=pool(fleet.decode, decode_lm, "none") if generates_apart else None,
        encode=EncodePool(fleet.encode.count, fleet.encode.max_batch_items) if consumes else None,
        costs=FleetCosts(
            render=build_render(costs.render, folder),
            encode=build_encode(costs.encode, folder),
            broadcast=costs.broadcast.build(),
            hop_ms=costs.hop_ms,
            body_link=build_link(costs.body_link, folder),
            ec_link=build_link(costs.ec_link, folder),
            kv_link=build_link(costs.kv_link, folder),
            kv_bytes_per_token=costs.kv_bytes_per_token,
        ),
        prefill_payload=fleet.prefill_payload,
        router=fleet.router,
        ec_capacity_bytes=None if fleet.ec_capacity_gib is None else int(fleet.ec_capacity_gib * GIB),
        dialect=named(fleet.dialect),
    )
