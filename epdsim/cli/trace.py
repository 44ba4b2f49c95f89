"""`epdsim trace`: files of traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

trace = typer.Typer(help="Convert files of traffic.", no_args_is_help=True, rich_markup_mode=None)


@trace.callback()
def _group() -> None:
    """Files of traffic."""


@trace.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A trace, a folder of ServeGen clients, or a scenario file (YAML).", metavar="IN"),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write to FILE (JSON lines; .gz compresses).", metavar="FILE")
    ],
    form: Annotated[
        str | None,
        typer.Option("--from", help="The form of IN, as a workload's kind; found out by default.", metavar="FORMAT"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of what is drawn, such as sizes that IN does not say.", metavar="N")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a key of the reader, e.g. image_size=720p; of a scenario, any key of its; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Convert traffic of any form to epdsim's own, in which each picture has an identity.

    The new trace runs as the old one does. A bad line ends the conversion with its number, and no file is left.
    """
    from epdsim.scenario.trace_session import run_convert

    run_convert(source, out, form, overrides or [], seed=seed)
