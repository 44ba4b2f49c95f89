"""The command line as a user has it, without the cost of a process each time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from epdsim.cli import main

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Outcome:
    """What a call came to; an exception that would be a traceback leaves the call."""

    code: int
    out: str
    err: str


class Call(Protocol):
    def __call__(self, *words: str) -> Outcome: ...


@pytest.fixture
def epdsim(tmp_path, monkeypatch, capfd) -> Call:
    """Runs `epdsim` in a folder of its own that holds the test data."""
    for file in DATA.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["epdsim", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def unfair(monkeypatch) -> Callable[[], None]:
    """Plants a defect when called, in this process alone: the router always takes the first."""
    return lambda: monkeypatch.setattr("epdsim.fleet.routing.RoundRobin.__call__", lambda _, pool, *__: pool[0])
