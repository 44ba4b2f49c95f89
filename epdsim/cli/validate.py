"""`epdsim validate`: published figures beside simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def validate(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Scenario files, or folders of them; scenarios/validation by default.", metavar="[PLACE]..."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print results as JSON in place of tables.")] = False,
) -> None:
    """Set published figures beside simulated ones.

    The exit code is 1 when a claim of a file fails, 2 when a file cannot be used.
    """
    from epdsim.scenario.validation import DEFAULT_FOLDER, run_validation

    raise typer.Exit(0 if run_validation(places or [DEFAULT_FOLDER], as_json=as_json) else 1)
