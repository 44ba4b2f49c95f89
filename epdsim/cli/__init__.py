"""The command line: one module per verb; heavy imports stay inside the verb that needs them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from epdsim import __version__
from epdsim.cli.calibrate import calibrate
from epdsim.cli.check import check
from epdsim.cli.compare import compare
from epdsim.cli.judge import judge
from epdsim.cli.plan import plan
from epdsim.cli.record import record
from epdsim.cli.replay import replay
from epdsim.cli.run import run
from epdsim.cli.validate import validate
from epdsim.core.errors import EpdsimError

app = typer.Typer(
    help="Simulate and test disaggregated multimodal serving: render, encode, prefill, decode.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command()(run)
app.command()(plan)
app.command()(compare)
app.command()(validate)
app.command()(check)
app.command()(judge)
app.command()(replay)
app.command()(record)
app.command()(calibrate)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epdsim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 a claim or comparison failed, 2 input that cannot be used, 3 inconclusive."""
    try:
        try:
            app(prog_name="epdsim")
        finally:
            sys.stdout.flush()
    except EpdsimError as error:
        typer.echo(f"epdsim: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("epdsim: interrupted; nothing half-written is left", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read the output has left; what is still buffered must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
