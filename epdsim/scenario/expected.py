"""Which figures a run can have, known from its fleet and its requests before it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from epdsim.core.errors import InputError
from epdsim.core.request import WARM_UP
from epdsim.fleet.config import FleetConfig
from epdsim.scenario.goodput import searches_goodput
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, described, matches
from epdsim.scenario.runner import BuiltPoint, build_point
from epdsim.workload.request import MediaRef, WorkloadRequest

_OF_REQUESTS = ("ttft_ms", "e2e_ms", "render_ms", "ttft_by_stage_ms")
_OF_ENCODERS = ("encoded_items", "ec_loads", "ec_bytes")


class Asked(NamedTuple):
    """A figure that a file asks for.

    Attributes:
        keys: Where.
        metric: Which.
        point: Of which run.
        is_positive: Whether a figure that is 0 in every such run is no answer: what it is compared with is more.
    """

    keys: tuple[str | int, ...]
    metric: str
    point: Point
    is_positive: bool = False


def check_figures(scenario: Scenario, seed: int) -> None:
    """Build every point, and refuse published figures and claims that ask for a figure that the run cannot have.

    Raises:
        InputError: With line and key; before anything is run.
    """
    asked = _asked(scenario)
    if not asked and len(scenario.points) == 1 and scenario.spec.fit is None:
        return  # it is built next in any case
    for point in scenario.points:
        wanted = scenario.spec.goodput if searches_goodput(scenario.spec, point) else None
        built = build_point(scenario, point, seed, {wanted.key: wanted.low} if wanted is not None else None)
        for one in asked:
            if dict(one.point) == dict(point) and (reason := _lacks(built, one)):
                told = f" at {described(point)}" if point else ""
                raise InputError(
                    scenario.file.place(one.keys),
                    f"the run{told} has no {one.metric}: {reason}",
                    "ask for another figure",
                )


def _asked(scenario: Scenario) -> list[Asked]:
    spec = scenario.spec
    asked = [Asked(("published", place), one.metric, one.at, True) for place, one in enumerate(spec.published)]
    for place, claim in enumerate(spec.claims):
        keys = ("claims", place)
        if claim.kind == "gap":
            asked += [Asked(keys, claim.metric, at) for at in (claim.high, claim.low)]
        elif claim.kind == "equal":
            points = [point for point in scenario.points if matches(point, claim.where)]
            asked += [Asked(keys, name, point) for point in points for name in claim.metrics]
        else:
            assert claim.kind == "deviation", "it speaks of published figures, which are asked for already"
    return asked


def _lacks(built: BuiltPoint, asked: Asked) -> str:
    """Why a run cannot have a figure; empty when it may have it."""
    head, _, entry = asked.metric.partition(".")
    fleet = built.fleet
    if head == "recovery_ms" and (fleet.faults is None or not fleet.faults.losses):
        return "no instance is lost"
    if head in _OF_REQUESTS and not _any(built, lambda _: True):
        return "all requests are warm-ups"
    if head == "tpot_ms" and not _any(built, lambda one: one.output_tokens > 1):
        return "no request has two output tokens"
    if head == "encode_run_ms" and not _any(built, _has_media):
        return "no request has media"
    return _is_zero(fleet, head, entry) if asked.is_positive else ""


def _is_zero(fleet: FleetConfig, head: str, entry: str) -> str:
    """Why a figure is 0 whatever the requests; empty when it need not be."""
    pools = _pools(fleet)
    if head in _OF_ENCODERS and "encode" not in pools:
        return "the fleet has no encode instances"
    if head == "kv_bytes" and "decode" not in pools:
        return "the fleet has no decode instances"
    if head == "leg_bytes" and entry and entry not in pools:
        return f"its legs are {', '.join(pools)}"
    if head == "busy_ms" and entry:
        instances = [name for pool in pools.values() for name in pool]
        return "" if entry in instances else f"its instances are {', '.join(instances)}"
    return ""


def _pools(fleet: FleetConfig) -> Mapping[str, Sequence[str]]:
    """Instances by the leg that they take."""
    stages = {"encode": fleet.encode, "prefill": fleet.prefill, "decode": fleet.decode}
    found = {
        stage: [f"{stage}-{index}" for index in range(pool.count)] for stage, pool in stages.items() if pool is not None
    }
    if len(found) == 1:
        return {"aggregated": [f"engine-{index}" for index in range(fleet.prefill.count)]}
    return found


def _any(built: BuiltPoint, holds: Callable[[WorkloadRequest], bool]) -> bool:
    return any(one.slo_class != WARM_UP and holds(one) for one in built.workload)


def _has_media(request: WorkloadRequest) -> bool:
    return any(isinstance(part, MediaRef) for part in request.parts)
