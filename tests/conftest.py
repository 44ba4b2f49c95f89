"""Fixtures that every test may use."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings

if TYPE_CHECKING:
    from collections.abc import Callable

# Explaining a failure traces every line of further examples: minutes in which a failed run says nothing.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("dev", deadline=None, phases=_PHASES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

_SHARED = Path(os.environ.get("EPDSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared_path() -> Callable[[str], Path]:
    """A path in the reference folder (recordings, public traces); the test is skipped when it is absent."""

    def find(relative: str) -> Path:
        path = _SHARED / relative
        if not path.exists():
            pytest.skip(f"{relative} is not here: set EPDSIM_SHARED to a folder that holds it")
        return path

    return find


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak A:B`: run each engine law once per seed, counting its workloads."""
    parser.addoption(
        "--soak", metavar="A:B", help="run the laws marked engine_law with each Hypothesis seed from A to B - 1"
    )


_soaked: dict[str, int] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Under `--soak`, a law is run with one seed after the other, each with its usual number of examples."""
    span = pyfuncitem.config.getoption("--soak")
    if span is None or pyfuncitem.get_closest_marker("engine_law") is None:
        return None
    law = pyfuncitem.obj
    counted = law.hypothesis.inner_test

    @functools.wraps(counted)
    def one_workload(*args: object, **kwargs: object) -> None:
        counted(*args, **kwargs)
        _soaked[pyfuncitem.nodeid] = _soaked.get(pyfuncitem.nodeid, 0) + 1

    law.hypothesis.inner_test = one_workload
    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    first, last = map(int, span.split(":"))
    for number in range(first, last):
        hypothesis.seed(number)(law)
        law(**fixtures)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many workloads a soak has judged."""
    span = terminalreporter.config.getoption("--soak")
    for law, count in _soaked.items():
        terminalreporter.write_line(f"soak: seeds {span}, {count:,} workloads: {law}")
