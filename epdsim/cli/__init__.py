"""The command line: one module per verb, imported when it is asked for; heavy imports stay inside the verb that needs them."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

from epdsim.cli.endings import Ended, signals_end_it
from epdsim.core.errors import EpdsimError


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
                from epdsim.cli.program import program

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
    # What imports make, 85,000 objects for a run, lives to the end: it need not be looked through for cycles again and again, nor
    # at the end once more.
    gc.set_threshold(100_000)
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
    sys.stderr.write(f"epdsim: {sentence}\n")
    sys.exit(code)
