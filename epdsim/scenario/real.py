"""Runs with real tensors: the scenario's plans, materialised and broadcast through shared memory to worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem
from epdsim.core.plan import StepPlan
from epdsim.core.request import Request
from epdsim.core.scheduler import Scheduler
from epdsim.core.slots import features_of
from epdsim.fleet import Renderer
from epdsim.media.tensors import materialise
from epdsim.payload import RealBroadcastReport, WireBytes, run_real_broadcast
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, described
from epdsim.scenario.runner import BuiltPoint, build_point

REPEATS = 25


@dataclass(frozen=True, slots=True)
class RealRun:
    """One point of a scenario with real tensors.

    Attributes:
        point: Its axis values.
        report: Bytes, digests and times of every plan that carries media.
    """

    point: Point
    report: RealBroadcastReport


def run_real_point(scenario: Scenario, point: Point, seed: int, repeats: int = REPEATS) -> RealRun:
    """Broadcast the plans of one point to as many ranks as its engine has.

    Raises:
        InputError: No plan of the point carries media.
    """
    built = build_point(scenario, point, seed)
    pool = built.fleet.prefill
    plans = list(media_plans(built))
    if not plans:
        raise InputError(
            f"scenario {scenario.spec.name!r}", "no step of it admits a request with media", "give requests media"
        )
    return RealRun(point, run_real_broadcast(plans, pool.tp, built.fleet.costs.broadcast, repeats))


def media_plans(built: BuiltPoint) -> Iterator[StepPlan]:
    """The steps that admit media, with real tensors behind every handle; requests go one after the other, in order of arrival."""
    dialect = built.fleet.dialect
    renderer = Renderer(built.family, dialect, [])
    scheduler = Scheduler(built.fleet.prefill.scheduler, dialect)
    items: dict[str, MediaItem] = {}
    for source in built.workload:
        rendered = renderer.render(source)
        features = features_of(rendered.tables, dialect) if rendered.tables else ()
        for feature in features:
            if feature.data is not None and feature.mm_hash not in items:
                items[feature.mm_hash] = materialise(feature.data, feature.mm_hash)
        real = tuple(replace(one, data=items.get(one.mm_hash)) for one in features)
        scheduler.add_request(Request(source.request_id, rendered.prompt, source.output_tokens, real))
        yield from (plan for plan in _steps(scheduler) if any(new.mm_features for new in plan.new))


def _steps(scheduler: Scheduler) -> Iterator[StepPlan]:
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        yield plan
        scheduler.update_from_output(plan)


def _wire(wire: WireBytes, readers: int) -> str:
    """Bytes in the ring, and through the sockets of all ranks."""
    sockets = f" + {readers} x {wire.socket_bytes_per_reader:,}" if wire.socket_bytes_per_reader else ""
    return f"{wire.ring_bytes:,}{sockets}"


def real_rows(runs: Sequence[RealRun]) -> list[list[str]]:
    """A row per plan: bytes predicted and sent, digests, times."""
    rows: list[list[str]] = []
    for run in runs:
        told = described(run.point)
        for index, plan in enumerate(run.report.plans):
            rows.append(
                [
                    told,
                    str(index),
                    f"{plan.size.total_bytes:,}",
                    _wire(plan.predicted_wire, run.report.readers),
                    "equal" if plan.are_bytes_equal else "DIFFERENT",
                    "equal" if plan.are_digests_equal else "DIFFERENT",
                    f"{plan.predicted_ms:.2f}",
                    f"{plan.times_ms[0]:.2f} / {plan.median_ms:.2f} / {plan.times_ms[-1]:.2f}",
                    "yes" if plan.is_within_spread else "no",
                ]
            )
    return rows
