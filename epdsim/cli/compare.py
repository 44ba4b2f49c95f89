"""`epdsim compare`: two scenarios or two policies over the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.options import CheckOption, JsonOption, ProcessesOption, RayOption, StoreOption


def compare(
    base: Annotated[Path, typer.Argument(help="The scenario file to compare with.", metavar="BASE.yaml")],
    head: Annotated[
        Path | None,
        typer.Argument(help="The scenario file to judge; BASE.yaml itself by default.", metavar="[HEAD.yaml]"),
    ] = None,
    on_base: Annotated[
        list[str] | None,
        typer.Option("--base", help="Change a key on the side of the base; repeatable.", metavar="KEY=VALUE"),
    ] = None,
    on_head: Annotated[
        list[str] | None,
        typer.Option(
            "--head", help="Change a key on the side of the head, e.g. fleet.router=least_loaded.", metavar="KEY=VALUE"
        ),
    ] = None,
    on_both: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a key on both sides, under --base and --head; repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds from A to B - 1.", metavar="A:B")] = "0:5",
    figures: Annotated[
        list[str] | None,
        typer.Option("--figure", help="A figure to compare, e.g. ttft_ms.p99; repeatable.", metavar="NAME"),
    ] = None,
    worse_by: Annotated[
        float, typer.Option("--worse-by", min=0, help="Percent by which a figure may be worse.", metavar="PERCENT")
    ] = 0.0,
    check: CheckOption = True,
    processes: ProcessesOption = None,
    store: StoreOption = None,
    ray: RayOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two scenarios, or two settings of one.

    The exit code is 1 when a figure is worse by more than --worse-by for certain or a run breaks a property, 2 when the input
    cannot be used.
    """
    from epdsim.cli.live import seed_range
    from epdsim.scenario.compare_session import Side, run_compare
    from epdsim.scenario.sweep import Sweep

    both, either = tuple(on_both or ()), "--set or " if on_both else ""
    holds = run_compare(
        Side(base, (*both, *(on_base or ())), f"{either}--base"),
        Side(head or base, (*both, *(on_head or ())), f"{either}--head"),
        seeds=seed_range(seeds),
        figures=figures or (),
        tolerated_percent=worse_by,
        sweep=Sweep(processes, store, is_judged=check, is_on_ray=ray),
        as_json=as_json,
    )
    raise typer.Exit(0 if holds else 1)
