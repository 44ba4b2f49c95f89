"""The kinds of workloads that a scenario file can name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from epdsim.core.errors import InputError
from epdsim.workload.kinds import Description, Kinds
from epdsim.workload.specs import as_input_error
from epdsim.workload.workload import Workload

_OPEN = {
    "azure-csv": "epdsim.workload.azure:AzureCsvSpec",
    "mooncake-jsonl": "epdsim.workload.jsonl:MooncakeSpec",
    "jsonl": "epdsim.workload.jsonl:JsonlSpec",
    "burstgpt-csv": "epdsim.workload.burstgpt:BurstGptSpec",
    "bailian-jsonl": "epdsim.workload.bailian:BailianSpec",
    "blis-csv": "epdsim.workload.blis:BlisSpec",
    "blis-yaml": "epdsim.workload.blis_yaml:BlisYamlSpec",
    "aiperf-jsonl": "epdsim.workload.aiperf:AiperfSpec",
    "aiperf-multi-turn": "epdsim.workload.aiperf_turns:AiperfTurnsSpec",
    "csv": "epdsim.workload.own_csv:OwnCsvSpec",
    "servegen": "epdsim.workload.servegen:ServeGenSpec",
    "poisson": "epdsim.workload.synthetic:PoissonSpec",
    "gamma": "epdsim.workload.synthetic:GammaSpec",
    "weibull": "epdsim.workload.synthetic:WeibullSpec",
    "constant": "epdsim.workload.synthetic:ConstantSpec",
    "bursts": "epdsim.workload.synthetic:BurstsSpec",
    "at-once": "epdsim.workload.synthetic:AtOnceSpec",
    "random-mm": "epdsim.workload.random_mm:RandomMmSpec",
    "sessions": "epdsim.workload.sessions:SessionsSpec",
    "fixed": "epdsim.workload.fixed:FixedSpec",
    "repeat": "epdsim.workload.fixed:RepeatSpec",
}
OpenSpec = Annotated[Description, Kinds(_OPEN)]
"""Workloads whose requests arrive by the clock."""
WorkloadSpec = Annotated[Description, Kinds({**_OPEN, "closed-loop": "epdsim.workload.closed_loop:ClosedLoopSpec"})]
"""Any workload as a scenario file states it, told apart by `kind`."""


def parse_workload_spec(spec: Mapping[str, Any]) -> Description:
    """A description from plain data.

    Raises:
        InputError: A key is unknown, missing, or its value cannot be used.
    """
    validate = TypeAdapter[Description](WorkloadSpec).validate_python
    try:
        return validate(spec)
    except ValidationError as error:
        raise as_input_error(error, spec, "workload", validate) from error


def build_workload(spec: Mapping[str, Any] | Description, base_dir: Path, seed: int) -> Workload:
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
