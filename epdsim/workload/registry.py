"""The kinds of workloads that a scenario file can name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from epdsim.core.errors import InputError
from epdsim.workload.azure import AzureCsvSpec
from epdsim.workload.fixed import FixedSpec, RepeatSpec
from epdsim.workload.jsonl import JsonlSpec, MooncakeSpec
from epdsim.workload.servegen import ServeGenSpec
from epdsim.workload.specs import as_input_error
from epdsim.workload.synthetic import BurstsSpec, ConstantSpec, GammaSpec, PoissonSpec, WeibullSpec
from epdsim.workload.workload import Workload

AnySpec = (
    AzureCsvSpec
    | MooncakeSpec
    | JsonlSpec
    | ServeGenSpec
    | PoissonSpec
    | GammaSpec
    | WeibullSpec
    | ConstantSpec
    | BurstsSpec
    | FixedSpec
    | RepeatSpec
)

WorkloadSpec = Annotated[AnySpec, Field(discriminator="kind")]
"""Any workload as a scenario file states it, told apart by `kind`."""

_ADAPTER: TypeAdapter[AnySpec] = TypeAdapter(WorkloadSpec)


def parse_workload_spec(spec: Mapping[str, Any]) -> AnySpec:
    """A description from plain data.

    Raises:
        InputError: A key is unknown, missing, or its value cannot be used.
    """
    try:
        return _ADAPTER.validate_python(spec)
    except ValidationError as error:
        raise as_input_error(error, "workload") from error


def build_workload(spec: Mapping[str, Any] | AnySpec, base_dir: Path, seed: int) -> Workload:
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
