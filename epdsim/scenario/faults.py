"""From the section `faults` of a scenario file to what the fleet takes."""

from __future__ import annotations

from collections import defaultdict

from epdsim.core.errors import InputError
from epdsim.fleet.faults import Faults, LinkName, Loss, Span
from epdsim.scenario.faults_schema import FaultsSpec
from epdsim.scenario.fleet_schema import FleetSpec
from epdsim.scenario.loader import Scenario


def build_faults(scenario: Scenario, told: FaultsSpec, fleet: FleetSpec) -> Faults:
    """What goes wrong in a run.

    Args:
        scenario: Whose file says so, for errors.
        told: Its section.
        fleet: What it happens to.

    Raises:
        InputError: An instance that the fleet does not have, or one of a pool that steps together.
    """
    pools = _pools(fleet)
    for index, loss in enumerate(told.losses):
        with scenario.placed("faults", "losses", index, "instance"):
            _check(loss.instance, pools)
            pool = fleet.decode if loss.instance.startswith("decode") else fleet.prefill
            if pool.lockstep and not loss.instance.startswith("encode"):
                rule = "its pool steps together, and a loss would stop all of it"
                raise InputError(repr(loss.instance), rule, "set lockstep to false, or lose another instance")
    slow: defaultdict[str, list[Span]] = defaultdict(list)
    for index, one in enumerate(sorted(told.slow_encoders, key=lambda one: one.from_ms)):
        with scenario.placed("faults", "slow_encoders", index, "instance"):
            _check(one.instance, {name: count for name, count in pools.items() if name == "encode"})
        slow[one.instance].append((one.from_ms, one.until_ms, 1.0 / one.factor))
    links: defaultdict[LinkName, list[Span]] = defaultdict(list)
    for one in sorted(told.links, key=lambda one: one.from_ms):
        speed = 0.0 if one.factor is None else 1.0 / one.factor
        links[one.link].append((one.from_ms, one.until_ms, speed))
    return Faults(
        tuple(Loss(one.instance, one.at_ms, one.back_ms) for one in told.losses),
        slow,
        links,
        tuple(told.ec_evictions_ms),
        told.max_retries,
        told.detect_ms,
        told.give_up_ms,
    )


def _pools(fleet: FleetSpec) -> dict[str, int]:
    """Numbers of instances, by what their names begin with."""
    pools = {"engine" if fleet.topology == "aggregated" else "prefill": fleet.prefill.count}
    if fleet.topology.startswith("e+"):
        pools["encode"] = fleet.encode.count
    if fleet.topology.endswith("p+d"):
        pools["decode"] = fleet.decode.count
    return pools


def _check(instance: str, pools: dict[str, int]) -> None:
    names = {f"{name}-{index}" for name, count in pools.items() for index in range(count)}
    if instance not in names:
        there = ", ".join(
            f"{name}-0 to {name}-{count - 1}" if count > 1 else f"{name}-0" for name, count in pools.items()
        )
        raise InputError(
            repr(instance), "the fleet has no such instance", f"it has {there}" if there else "it has none"
        )
