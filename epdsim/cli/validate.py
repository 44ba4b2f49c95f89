"""`epdsim validate`: published figures beside simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.options import CheckOption, JsonOption, ProcessesOption, RayOption, StoreOption


def validate(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Scenario files, or folders of them; scenarios/validation by default.", metavar="[PLACE]..."
        ),
    ] = None,
    as_json: JsonOption = False,
    check: CheckOption = True,
    processes: ProcessesOption = None,
    store: StoreOption = None,
    ray: RayOption = False,
) -> None:
    """Set published figures beside simulated ones.

    The exit code is 1 when a claim of a file fails or a run breaks a property, 2 when a file cannot be used.
    """
    from epdsim.scenario.sweep import Sweep
    from epdsim.scenario.validation import DEFAULT_FOLDER, run_validation

    sweep = Sweep(processes, store, is_judged=check, is_on_ray=ray)
    raise typer.Exit(0 if run_validation(places or [DEFAULT_FOLDER], sweep, as_json=as_json) else 1)
