"""What the ranks of a pool's engines decide beside the broadcast: how many GPUs share the model, and what an instance costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from epdsim.core.errors import InputError
from epdsim.cost.lm import LmCost
from epdsim.cost.spec import LinearLmSpec, RooflineEncodeSpec, build_lm
from epdsim.scenario.loader import Scenario
from epdsim.scenario.schema import ScenarioSpec

if TYPE_CHECKING:
    from epdsim.scenario.search_schema import PoolBounds

EnginePoolName = Literal["prefill", "decode"]


def gpus_of(spec: ScenarioSpec, pool: str) -> int:
    """GPUs of an instance of a pool, by the dotted key of the number of its instances; a front end counts as one."""
    if pool == "fleet.encode.count":
        return spec.costs.encode.tp if isinstance(spec.costs.encode, RooflineEncodeSpec) else 1
    engines: dict[str, EnginePoolName] = {"fleet.prefill.count": "prefill", "fleet.decode.count": "decode"}
    return ranks_of(spec, engines[pool]) if pool in engines else 1


def ranks_of(spec: ScenarioSpec, pool: EnginePoolName) -> int:
    """Ranks of an engine of a pool: its `tp`, or as many as GPUs share the model where the costs alone say so."""
    engines, described = getattr(spec.fleet, pool), getattr(spec.costs, _costs_key(spec, pool))
    stated = None if "tp" in engines.model_fields_set else getattr(described, "tp", None)
    return stated or engines.tp


def _costs_key(spec: ScenarioSpec, pool: EnginePoolName) -> str:
    return "decode_lm" if pool == "decode" and spec.costs.decode_lm else "lm"


def priced_otherwise(spec: ScenarioSpec, pools: Mapping[str, PoolBounds]) -> Iterator[str]:
    """A sentence for each pool of which the plan states other GPUs than an instance of it has."""
    for pool, bounds in pools.items():
        gpus, name = gpus_of(spec, pool), pool.split(".")[1]
        if bounds.gpus != gpus:
            yield f"an instance of {name} costs {bounds.gpus:g} GPUs, as plan.pools says; it is run on {gpus}"


def engine_lm(scenario: Scenario, spec: ScenarioSpec, pool: EnginePoolName) -> LmCost:
    """Steps of a pool's engines: as many GPUs share the model as each of them has ranks.

    Args:
        scenario: For the places of errors, and for its folder.
        spec: Of the run.
        pool: Which.

    Raises:
        InputError: The costs state another number of GPUs, or the model cannot be shared so.
    """
    key, tp = _costs_key(spec, pool), ranks_of(spec, pool)
    described = getattr(spec.costs, key)
    place = scenario.file.place(("costs", key))
    if not isinstance(described, LinearLmSpec):
        if described.tp is None:
            described = described.model_copy(update={"tp": tp})
            place += f" on the {tp} GPUs of fleet.{pool}.tp" if tp > 1 else ""
        elif described.tp != tp:
            raise InputError(
                f"{scenario.file.place(('costs', key, 'tp'))}: {described.tp}",
                f"engines have as many ranks as GPUs, and fleet.{pool}.tp is {tp}",
                f"leave costs.{key}.tp out, so that fleet.{pool}.tp sets both",
            )
    try:
        return build_lm(described, scenario.folder)
    except InputError as error:
        raise error.at(place) from error
