"""`epdsim run`: simulate a scenario file."""

# Annotations are not left as texts here: typer would evaluate each, twice.

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.options import CheckOption, HtmlOption, JsonOption, ProcessesOption, RayOption, SeedOption, StoreOption


class Payload(StrEnum):
    """What is behind a tensor in a run."""

    SIZES = "sizes"
    REAL = "real"


def run(
    scenario: Annotated[Path, typer.Argument(help="The scenario file (YAML).", metavar="SCENARIO.yaml")],
    as_json: JsonOption = False,
    events: Annotated[
        Path | None, typer.Option(help="Write every event to FILE (NDJSON; .gz compresses).", metavar="FILE")
    ] = None,
    html: HtmlOption = None,
    csv: Annotated[Path | None, typer.Option(help="Write every figure of every run to FILE.", metavar="FILE")] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Write a time line for the Perfetto viewer to FILE (JSON; .gz compresses).", metavar="FILE"),
    ] = None,
    seed: SeedOption = None,
    payload: Annotated[
        Payload,
        typer.Option(
            help="sizes: simulate, tensors are sizes only; real: send real tensors to worker processes and check them."
        ),
    ] = Payload.SIZES,
    profile: Annotated[
        Path | None,
        typer.Option(help="Broadcast constants of this host, as epdsim calibrate writes them.", metavar="FILE"),
    ] = None,
    check: CheckOption = True,
    processes: ProcessesOption = None,
    store: StoreOption = None,
    ray: RayOption = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a key for this run, e.g. fleet.prefill.tp=2; repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
) -> None:
    """Run a scenario and print its figures.

    The exit code is 1 when a claim of the file fails or a run breaks a property, 2 when the file cannot be used.
    """
    from epdsim.core.errors import InputError

    if payload is Payload.REAL:
        given = {"--events": events, "--html": html, "--csv": csv, "--perfetto": perfetto, "--store": store}
        for option in (option for option, path in given.items() if path is not None):
            raise InputError(f"{option} with --payload real", "nothing is simulated then", "leave one of them out")
        from epdsim.scenario.real_session import run_real

        holds = run_real(scenario, overrides or [], profile, seed=seed, as_json=as_json)
    else:
        from epdsim.scenario.session import OutputFiles, run_simulated
        from epdsim.scenario.sweep import Sweep

        files, sweep = OutputFiles(events, html, csv, perfetto), Sweep(processes, store, is_judged=check, is_on_ray=ray)
        holds = run_simulated(scenario, overrides or [], profile, files, sweep, seed=seed, as_json=as_json)
    raise typer.Exit(0 if holds else 1)
