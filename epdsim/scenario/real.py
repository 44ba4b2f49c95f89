"""Runs with real tensors: the scenario's plans, materialised and broadcast through shared memory to worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem
from epdsim.core.plan import StepPlan
from epdsim.core.records import record
from epdsim.core.request import Request
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.slots import features_of
from epdsim.cost.profile import ProfileRecord
from epdsim.fleet.render import Renderer
from epdsim.media.tensors import materialise
from epdsim.payload import RealBroadcastReport, run_real_broadcast
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point
from epdsim.scenario.runner import BuiltPoint, build_point

REPEATS = 25


@record
class RealRun:
    """One point of a scenario with real tensors.

    Attributes:
        point: Its axis values.
        report: Bytes, digests and times of every plan that carries media.
    """

    point: Point
    report: RealBroadcastReport


def run_real_point(
    scenario: Scenario, point: Point, seed: int, record: ProfileRecord | None = None, repeats: int = REPEATS
) -> RealRun:
    """Broadcast the plans of one point to as many ranks as its engine has.

    Args:
        scenario: Its broadcast constants are the record's, unless its own settings changed them.
        point: Of the scenario.
        seed: Of the workload.
        record: This host's calibration, with which the host's speed now is compared.
        repeats: Timed rounds.

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
    broadcast = built.fleet.costs.broadcast
    measured = record.measured if record is not None and record.profile == broadcast else ()
    return RealRun(point, run_real_broadcast(plans, pool.tp, broadcast, repeats, measured=measured))


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
