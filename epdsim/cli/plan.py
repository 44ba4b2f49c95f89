"""`epdsim plan`: the smallest fleet for a service level."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario file (YAML) with the sections slo and plan.", metavar="SCENARIO.yaml")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON in place of tables.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write tables and figures to FILE, one page that fetches nothing.", metavar="FILE"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the answer once more under the settings of plan.check.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of all random streams, in place of the file's.", metavar="N")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes to run fleets on; one per core by default.", metavar="N"),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Keep finished runs in FOLDER, and take those that are there: an interrupted search goes on.",
            metavar="FOLDER",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a key for this run, e.g. slo.ttft_ms.p99=500; repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
) -> None:
    """Find the smallest fleet that meets a service level.

    The exit code is 1 when the check misses it, 2 when the file cannot be used or no fleet within its bounds meets it.
    """
    from epdsim.scenario.plan_session import run_plan

    holds = run_plan(
        scenario,
        overrides or [],
        seed=seed,
        processes=processes,
        store=store,
        html=html,
        wants_check=check,
        as_json=as_json,
    )
    raise typer.Exit(0 if holds else 1)
