"""`epdsim replay`: compare the model with what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    what: Annotated[
        Path, typer.Argument(help="A wire recording (folder) or a schedule recording (JSON lines).", metavar="WHAT")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Replay a recording against the model.

    The exit code is 1 when something differs; the first difference is told.
    """
    import dataclasses
    import json

    from epdsim.report.table import print_table
    from epdsim.sut import replay_any

    report = replay_any(what)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        rows = [(row.what, f"{row.equal:,} of {row.total:,}") for row in report.counts]
        print_table(f"{report.recording}: {report.release}", ["compared", "equal"], rows)
        for line in (*report.notes, *report.first_difference):
            typer.echo(line)
    raise typer.Exit(0 if report.is_equal else 1)
