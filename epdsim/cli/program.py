"""The verbs as one program."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from epdsim import __version__

VERBS = (
    "run",
    "plan",
    "compare",
    "validate",
    "check",
    "soak",
    "table",
    "judge",
    "replay",
    "record",
    "calibrate",
    "trace",
)
"""Each is a function, or a program of its own, in the module of its name."""


def program(words: Sequence[str] = ()) -> typer.Typer:
    """The program as a command line needs it.

    Args:
        words: What the line says. The verb that it begins with stands alone; of a line that begins otherwise all are there.
    """
    app = typer.Typer(
        help="Simulate and test disaggregated multimodal serving: render, encode, prefill, decode.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_options)
    for name in words[:1] if words and words[0] in VERBS else VERBS:
        verb = getattr(import_module(f"{__package__}.{name}"), name)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            app.command()(verb)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epdsim {__version__}")
        raise typer.Exit


def _options(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
