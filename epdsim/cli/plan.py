"""`epdsim plan`: the smallest fleet for a service level."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.options import HtmlOption, JsonOption, ProcessesOption, RayOption, SeedOption, StoreOption


def plan(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario file (YAML) with the sections slo and plan.", metavar="SCENARIO.yaml")
    ],
    as_json: JsonOption = False,
    html: HtmlOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the answer once more under the settings of plan.check.")
    ] = False,
    curves: Annotated[
        bool,
        typer.Option(
            "--curves",
            help="Run the answer and the fleets next to it under half to twice the load, and under the settings of plan.what_if.",
        ),
    ] = False,
    judge: Annotated[
        bool,
        typer.Option(
            "--judge", help="Let the monitors of the properties judge every fleet that runs to its end; it costs time."
        ),
    ] = False,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive",
            help="Run every fleet that is cheaper than the answer, also those that a larger one which misses speaks against.",
        ),
    ] = False,
    seed: SeedOption = None,
    processes: ProcessesOption = None,
    store: StoreOption = None,
    ray: RayOption = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a key for this run, e.g. slo.ttft_ms.p99=500; repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
) -> None:
    """Find the smallest fleet that meets a service level.

    The exit code is 1 when the check misses it or a run breaks a property, 2 when the file cannot be used or no fleet within its
    bounds meets it.
    """
    from epdsim.scenario.plan_session import Wanted, run_plan
    from epdsim.scenario.sweep import Sweep

    holds = run_plan(
        scenario,
        overrides or [],
        sweep=Sweep(processes, store, is_judged=judge, is_on_ray=ray),
        seed=seed,
        html=html,
        wants=Wanted(check, curves, exhaustive=exhaustive),
        as_json=as_json,
    )
    raise typer.Exit(0 if holds else 1)
