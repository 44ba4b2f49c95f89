"""The program starts quickly: what is heavy is imported by the verb, and the run, that needs it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

HELP = "import sys; sys.argv = ['epdsim', '--help']; from epdsim.cli import main; main()"
AND_SAY = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr)); "
SCENARIO = Path(__file__).resolve().parents[2] / "scenarios/capacity/text-baseline.yaml"
RUN = (
    f"import sys; sys.argv = ['epdsim', 'run', {str(SCENARIO)!r}, '--set', 'workload.num_requests=1', '--no-check', '--json'];"
    "from epdsim.cli import main; main()"
)
HEAVY = {"torch", "simpy", "hypothesis", "numpy", "pydantic", "rich", "msgspec", "yaml", "jinja2", "pytest"}


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", AND_SAY + HELP], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: epdsim")
    imported = done.stderr.split()
    assert {"epdsim.cli", "typer"} <= set(imported)
    assert not HEAVY & set(imported)


NOT_FOR_A_TEXT_RUN = HEAVY - {"numpy", "pydantic", "msgspec", "yaml"} | {
    "concurrent.futures",
    "epdsim.cli.check",
    "epdsim.cost.profile",
    "epdsim.media.gemma",
    "epdsim.payload.ring",
    "epdsim.report.figures",
    "epdsim.report.html",
    "epdsim.scenario.claims_schema",
    "epdsim.scenario.faults",
    "epdsim.scenario.faults_schema",
    "epdsim.scenario.fit",
    "epdsim.scenario.pool",
    "epdsim.scenario.search_schema",
    "epdsim.scenario.store",
    "epdsim.spec",
    "epdsim.sut",
    "epdsim.testing",
    "epdsim.wire",
    "epdsim.workload.azure",
    "epdsim.workload.blis_file",
    "epdsim.workload.jsonl",
    "epdsim.workload.leaving",
    "epdsim.workload.media",
    "epdsim.workload.sizes",
    "matplotlib",
    "multiprocessing",
    "numpy.ma",
    "scipy",
}


def test_a_run_of_text_imports_what_it_needs():
    done = subprocess.run([sys.executable, "-c", AND_SAY + RUN], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["scenario"] == "text-baseline"
    imported = done.stderr.split()
    assert {"epdsim.scenario.session", "epdsim.workload.synthetic"} <= set(imported)
    assert not NOT_FOR_A_TEXT_RUN & set(imported)


def test_numpy_starts_no_threads():
    say = (
        "import atexit, os, sys; atexit.register(lambda: print(len(os.listdir('/proc/self/task')), file=sys.stderr)); "
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", say + RUN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.split() == ["1"]


def test_no_cycles_are_searched_in_what_imports_make():
    count = (
        "import atexit, gc, sys; from epdsim.cli import main; begun = []; gc.callbacks.append(lambda *now: begun.append(now)); "
        "atexit.register(lambda: print(len(begun), file=sys.stderr)); "
    )
    done = subprocess.run([sys.executable, "-c", count + RUN], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0"]


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


@pytest.mark.bench
def test_a_run_of_one_request_costs_at_most_two_and_a_half_times_its_libraries():
    one_thread = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; "
    libraries = one_thread + "import numpy.random, pydantic.main, typer, yaml, msgspec"
    ratio = cpu_s(RUN, 15) / cpu_s(libraries, 15)
    print(f"a run of one request costs {ratio:.1f} times the import of what it is built on")  # noqa: T201
    assert ratio <= 2.5
