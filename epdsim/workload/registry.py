"""The kinds of workloads that a scenario file can name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from epdsim.core.errors import InputError
from epdsim.workload.aiperf import AiperfSpec
from epdsim.workload.aiperf_turns import AiperfTurnsSpec
from epdsim.workload.azure import AzureCsvSpec
from epdsim.workload.bailian import BailianSpec
from epdsim.workload.blis import BlisSpec
from epdsim.workload.blis_yaml import BlisYamlSpec
from epdsim.workload.burstgpt import BurstGptSpec
from epdsim.workload.fixed import FixedSpec, RepeatSpec
from epdsim.workload.jsonl import JsonlSpec, MooncakeSpec
from epdsim.workload.own_csv import OwnCsvSpec
from epdsim.workload.random_mm import RandomMmSpec
from epdsim.workload.servegen import ServeGenSpec
from epdsim.workload.sessions import SessionsSpec
from epdsim.workload.specs import PositiveInt, SpecModel, as_input_error
from epdsim.workload.synthetic import AtOnceSpec, BurstsSpec, ConstantSpec, GammaSpec, PoissonSpec, WeibullSpec
from epdsim.workload.workload import Workload

OpenSpec = (
    AzureCsvSpec
    | MooncakeSpec
    | JsonlSpec
    | BurstGptSpec
    | BailianSpec
    | BlisSpec
    | BlisYamlSpec
    | AiperfSpec
    | AiperfTurnsSpec
    | OwnCsvSpec
    | ServeGenSpec
    | PoissonSpec
    | GammaSpec
    | WeibullSpec
    | ConstantSpec
    | BurstsSpec
    | AtOnceSpec
    | RandomMmSpec
    | SessionsSpec
    | FixedSpec
    | RepeatSpec
)
"""Workloads whose requests arrive by the clock."""


class ClosedLoopSpec(SpecModel):
    """Any other workload as a closed loop: its order and its prompts, and its arrival times only where asked for.

    Attributes:
        concurrency: Requests in flight.
        keeps_arrivals: Send none before its arrival time: the concurrency is the most that are in flight. One that has to wait for
            its turn counts as arrived when it is sent.
        requests: Where the requests come from.
    """

    kind: Literal["closed-loop"] = "closed-loop"
    concurrency: PositiveInt
    keeps_arrivals: bool = False
    requests: Annotated[OpenSpec, Field(discriminator="kind")]

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload, with its concurrency set."""
        inner = self.requests.build(base_dir, seed)
        arrivals = (
            "none sent before its arrival time" if self.keeps_arrivals else "arrival times of the source not used"
        )
        told = f"{inner.assumptions}; closed loop of {self.concurrency}, {arrivals}".removeprefix("; ")
        return replace(inner, concurrency=self.concurrency, keeps_arrivals=self.keeps_arrivals, assumptions=told)


WorkloadSpec = Annotated[OpenSpec | ClosedLoopSpec, Field(discriminator="kind")]
"""Any workload as a scenario file states it, told apart by `kind`."""


@cache
def _adapter() -> TypeAdapter[OpenSpec | ClosedLoopSpec]:
    return TypeAdapter(WorkloadSpec)  # as good as a tenth of a program's start: made where a description comes alone


def parse_workload_spec(spec: Mapping[str, Any]) -> OpenSpec | ClosedLoopSpec:
    """A description from plain data.

    Raises:
        InputError: A key is unknown, missing, or its value cannot be used.
    """
    try:
        return _adapter().validate_python(spec)
    except ValidationError as error:
        raise as_input_error(error, spec, "workload") from error


def build_workload(spec: Mapping[str, Any] | OpenSpec | ClosedLoopSpec, base_dir: Path, seed: int) -> Workload:
    """The workload that a description states.

    Args:
        spec: Plain data with `kind`, as YAML gives it, or the model made from it.
        base_dir: What relative paths in it are relative to.
        seed: Seed of the run.

    Raises:
        InputError: The description, or a file that it names, cannot be used. Lines of a trace are read only when the workload is
            iterated over, so a bad line raises then.
    """
    if seed < 0:
        raise InputError(f"seed {seed}", "a seed is at least 0")
    return (parse_workload_spec(spec) if isinstance(spec, Mapping) else spec).build(base_dir, seed)
