"""`epdsim table`: verdicts of several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def table(
    reports: Annotated[
        list[Path], typer.Argument(help="Files that epdsim check --report wrote.", metavar="REPORT", dir_okay=False)
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Set the verdicts of releases side by side.

    They come from reports of epdsim check; where a release and the model of it differ is told beneath.

    The exit code is 1 when a release is decided on a property and the model in its dialect does not agree.
    """
    from epdsim.report.table import print_table
    from epdsim.testing.verdict_table import read_report, verdict_table

    made = verdict_table([read_report(path) for path in reports])
    if markdown:
        for line in made.markdown():
            typer.echo(line)
        typer.echo("")
    else:
        print_table("verdicts", ["property", *made.columns], [(name, *cells) for name, cells in made.rows])
    for one in made.differences:
        why = f" ({one.reason})" if one.reason else ""
        typer.echo(f"{one.property_id} in {one.release}: {one.seen}{why}, the model says {one.predicted}")
    num_decided = made.num_compared - sum(one.is_explained for one in made.differences)
    num_equal = made.num_compared - len(made.differences)
    if made.num_compared:
        typer.echo(f"{num_equal:,} of {num_decided:,} verdicts of releases are what the model in their dialects says")
    raise typer.Exit(0 if made.is_equal else 1)
