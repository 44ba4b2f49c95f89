"""`epdsim --help` is quick: what is heavy is imported by the verb that needs it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

HELP = "import sys; sys.argv = ['epdsim', '--help']; from epdsim.cli import main; main()"
AND_SAY = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr)); "
HEAVY = {"torch", "simpy", "hypothesis", "numpy", "pydantic", "rich", "msgspec", "yaml", "jinja2", "pytest"}


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", AND_SAY + HELP], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: epdsim")
    imported = done.stderr.split()
    assert {"epdsim.cli", "typer"} <= set(imported)
    assert not HEAVY & set(imported)


def cpu_s(code, repeats):
    """User and system time of a process that runs some code: the least of several, in turn with nobody else's."""
    least = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return least


@pytest.mark.bench
def test_help_costs_at_most_ten_times_an_empty_program():
    ratio = cpu_s(HELP, 15) / cpu_s("pass", 15)
    print(f"epdsim --help costs {ratio:.1f} times `python -c pass`")  # noqa: T201
    assert ratio <= 10
