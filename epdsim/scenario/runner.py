"""One run of a scenario: it builds its fleet anew, so that no run can disturb another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect
from epdsim.cost.spec import RooflineLmSpec, build_encode, build_link, build_render
from epdsim.events import Sink
from epdsim.fleet.config import EcConfig, EncodePool, EnginePool, FleetConfig, FleetCosts, LinkSharing, RenderPool
from epdsim.media import Family, family, family_in
from epdsim.report.metrics import RunMetrics
from epdsim.report.observer import RunObserver, RunPicture
from epdsim.report.sink import MetricsSink
from epdsim.scenario.fleet_schema import EncodePoolSpec, EnginePoolSpec
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point
from epdsim.scenario.ranks import EnginePoolName, engine_lm, ranks_of
from epdsim.scenario.schema import CostsSpec, ScenarioSpec
from epdsim.scenario.slo import decided_by_few
from epdsim.workload.registry import build_workload
from epdsim.workload.workload import Workload

if TYPE_CHECKING:
    from epdsim.fleet.faults import Faults
    from epdsim.spec import Judge, Property

GIB = 1 << 30
C = TypeVar("C")
D = TypeVar("D")


@record
class Judged:
    """What the monitors say of one property in one run.

    Attributes:
        num_reached: How often its premise held.
        num_broken: How often its statement did not.
        first: The first finding against it, in a sentence.
    """

    num_reached: int
    num_broken: int = 0
    first: str = ""


@record
class RunResult:
    """One run.

    Attributes:
        point: Its axis values.
        metrics: Its figures.
        assumptions: What the workload, the costs and bounded quantiles of few requests take for granted, in sentences.
        judged: What the monitors say of it, by property; None when nobody asked.
        picture: What a report draws of it; None when nobody asked.
        num_good: Requests all of whose latencies are within the bounds of a service level; None without one.
    """

    point: Point
    metrics: RunMetrics
    assumptions: tuple[str, ...] = ()
    judged: Mapping[str, Judged] | None = None
    picture: RunPicture | None = None
    num_good: int | None = None


def run_point(
    scenario: Scenario,
    point: Point,
    seed: int,
    constants: Mapping[str, float] | None = None,
    sinks: Sequence[Sink] = (),
    *,
    wants_detail: bool = False,
    is_judged: bool = False,
    wants_picture: bool = False,
    stretch_s: tuple[float, float] | None = None,
    load: float = 1.0,
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
        wants_picture: Keep what a report draws.
        stretch_s: Run the requests that arrive from there to there only, in seconds.
        load: Have them come so many times as fast.
    """
    from epdsim.fleet.simulation import simulate  # noqa: PLC0415 - who only loads or checks a file needs no fleet

    built = build_point(scenario, point, seed, constants)
    if stretch_s is not None:
        built = replace(built, workload=built.workload.between(*stretch_s))
    if load != 1.0:
        built = replace(built, workload=built.workload.at_load(load))
    metrics, judge = MetricsSink(), _judge(built.fleet) if is_judged else None
    observer = RunObserver() if wants_picture else None
    simulate(
        built.fleet,
        built.family,
        built.workload,
        [metrics, *(sink for sink in (judge, observer) if sink is not None), *sinks],
        concurrency=built.workload.concurrency,
        keeps_arrivals=built.workload.keeps_arrivals,
        wants_detail=wants_detail or is_judged,
        takes_strides=not wants_detail,
    )
    figures = metrics.result()
    few = decided_by_few(figures, scenario.spec.slo)
    return RunResult(
        point,
        figures,
        tuple(filter(None, (built.workload.assumptions, *built.assumptions, *few))),
        None if judge is None else _judged(judge),
        None if observer is None else observer.picture(),
    )


def _judge(fleet: FleetConfig) -> Judge:
    from epdsim.spec import JudgeInBatches  # noqa: PLC0415 - who is not judged starts sooner without the register

    return JudgeInBatches(laws_of(fleet))


def _judged(judge: Judge) -> Mapping[str, Judged]:
    return {
        name: Judged(one.num_reached, one.num_broken, "" if one.first is None else one.first.told)
        for name, one in judge.verdicts().items()
    }


def laws_of(fleet: FleetConfig) -> Iterable[Property]:
    """What a fleet is judged by: that nothing is sent in vain only where it was not told to send everything."""
    from epdsim.spec import OF_FLEETS  # noqa: PLC0415 - as above

    pools = filter(None, (fleet.prefill, fleet.decode))
    sends_all = any(pool.scheduler.strip == "off" for pool in pools)
    return (one for one in OF_FLEETS if not (sends_all and one.id == "STRIP-MAX"))


@record
class BuiltPoint:
    """What one run consists of."""

    fleet: FleetConfig
    family: Family
    workload: Workload
    assumptions: tuple[str, ...] = ()


def build_point(
    scenario: Scenario, point: Point, seed: int, constants: Mapping[str, float] | None = None
) -> BuiltPoint:
    """Fleet, family and workload of one point, from its validated description.

    Raises:
        InputError: A name or a file that the description gives cannot be used; with line and key.
    """
    spec = scenario.at(point, constants)
    with scenario.placed("family"):
        family(spec.family)
    with scenario.placed("fleet", "dialect"):
        dialect = _dialect(spec.fleet.dialect)
    with scenario.placed("family_options"):
        built = family_in(dialect, spec.family, **spec.family_options)
    with scenario.placed("workload"):
        workload = build_workload(spec.workload, scenario.folder, seed)
    if spec.clients is not None:
        from epdsim.workload.leaving import with_clients  # noqa: PLC0415 - few files have the section

        workload = with_clients(workload, spec.clients, seed)
    fleet = _fleet(scenario, spec, dialect, uses_mrope=built.uses_mrope)
    models = [model for model in (spec.costs.lm, spec.costs.decode_lm) if isinstance(model, RooflineLmSpec)]
    told = dict.fromkeys(model.assumption for model in models if model.assumption)
    return BuiltPoint(fleet, built, workload, tuple(told))


def _fleet(scenario: Scenario, spec: ScenarioSpec, dialect: Dialect, *, uses_mrope: bool) -> FleetConfig:
    fleet = spec.fleet
    consumes, generates_apart = fleet.topology.startswith("e+"), fleet.topology.endswith("p+d")

    def pool(name: EnginePoolName, described: EnginePoolSpec, ec_role: str) -> EnginePool:
        config, lm = described.scheduler.build(uses_mrope=uses_mrope, ec_role=ec_role), engine_lm(scenario, spec, name)
        return EnginePool(described.count, config, ranks_of(spec, name), lm, described.lockstep, described.router)

    return FleetConfig(
        topology=fleet.topology,
        render=RenderPool(fleet.render.count, int(fleet.render.cache_gib * GIB)),
        prefill=pool("prefill", fleet.prefill, "consumer" if consumes else "none"),
        decode=pool("decode", fleet.decode, "none") if generates_apart else None,
        encode=_encode_pool(fleet.encode) if consumes else None,
        costs=_costs(scenario, spec.costs),
        orchestrator=fleet.orchestrator,
        max_leg_items=fleet.max_leg_items,
        prefill_payload=fleet.prefill_payload,
        router=fleet.router,
        router_stale_ms=fleet.router_stale_ms,
        ec=EcConfig(**fleet.ec.model_dump()),
        ec_capacity_bytes=None if fleet.ec_capacity_gib is None else int(fleet.ec_capacity_gib * GIB),
        dialect=dialect,
        faults=_faults(scenario, spec),
    )


def _faults(scenario: Scenario, spec: ScenarioSpec) -> Faults | None:
    if spec.faults is None:
        return None
    from epdsim.scenario.faults import build_faults  # noqa: PLC0415 - few files have the section

    return build_faults(scenario, spec.faults, spec.fleet)


def _encode_pool(pool: EncodePoolSpec) -> EncodePool:
    return EncodePool(pool.count, pool.max_batch_items, pool.front_ends, pool.router)


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
        kv_layers=costs.kv_layers,
        sharing=LinkSharing(
            costs.body_link.sharing or "none", costs.ec_link.sharing or "none", costs.kv_link.sharing or "instance"
        ),
        encode_render=_cost(scenario, "encode_render", build_render, costs.encode_render)
        if costs.encode_render
        else None,
    )


def _cost(scenario: Scenario, key: str, build: Callable[[D, Path], C], described: D) -> C:
    """A cost model from its description; tables that it names are relative to the scenario file."""
    with scenario.placed("costs", key):
        return build(described, scenario.folder)
