"""The command line: one module per verb, imported when it is asked for; heavy imports stay inside the verb that needs them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from epdsim import __version__
from epdsim.cli.endings import Ended, signals_end_it
from epdsim.core.errors import EpdsimError

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
        verb = getattr(import_module(f"{__name__}.{name}"), name)
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


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 a claim or comparison failed, 2 input or output that cannot be used, 3 inconclusive. An interrupt
    gives 130, another signal that asks to end 128 and its number.
    """
    _replace_closed_streams()
    _start_lightly()
    try:
        with signals_end_it():
            try:
                program(sys.argv[1:])(prog_name="epdsim")
            finally:
                sys.stdout.flush()
    except EpdsimError as error:
        _leave(2, str(error))
    except Ended as ended:
        _leave(128 + ended.number, str(ended))
    except BrokenPipeError:
        _discard_output()
        sys.exit(141)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "epdsim"):
            raise
        _leave(2, f"package {package!r}: it is not installed here; install epdsim with what it depends on")
    except MemoryError:
        _leave(2, "out of memory: the input asks for more than this machine has; give it less")
    except OSError as error:
        # Files that are named in the input were told by whoever opened them: what is left is standard output.
        _discard_output()
        place = "standard output" if error.filename is None else repr(os.fsdecode(error.filename))
        _leave(2, f"{place}: it cannot be used ({error.strerror or error}); choose another place")


def _start_lightly() -> None:
    """Leave out what a program that does one thing and ends has no use for; it was a third of the start and the end."""
    # Nothing multiplies large matrices here, and the threads that numpy starts for it spin for a while.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What a scenario file means is no affair of pydantic's plugins, for which all installed packages would be looked through.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # What imports make lives to the end: it need not be looked through for cycles again and again, nor at the end once more.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)


def _replace_closed_streams() -> None:
    """Write into nothing where whoever started the program closed an output: no other file may come to stand there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the life of the program


def _discard_output() -> None:
    """Whoever read the output has left, or its disk is full: what is still buffered must not be written at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(code: int, sentence: str) -> NoReturn:
    typer.echo(f"epdsim: {sentence}", err=True)
    sys.exit(code)
