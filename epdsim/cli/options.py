"""Options that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON in place of tables.")]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Seed of all random streams, in place of the file's.", metavar="N")
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(min=1, max=256, help="Processes to run on; one per core by default.", metavar="N"),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        help="Keep finished runs in FOLDER, and take those that are there: what was interrupted goes on.",
        metavar="FOLDER",
    ),
]
RayOption = Annotated[bool, typer.Option("--ray", help="Run on the machines of a Ray cluster (extra: distributed).")]
HtmlOption = Annotated[
    Path | None,
    typer.Option(help="Write tables and figures to FILE, one page that fetches nothing.", metavar="FILE"),
]
CheckOption = Annotated[
    bool,
    typer.Option(
        "--check/--no-check",
        help="Let the monitors of the properties judge every run as it goes; half as much time again.",
    ),
]
