"""Replay whatever is given: the header, or the shape of the first line, says what it is."""

from __future__ import annotations

from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.events import read_header
from epdsim.sut.replay import ReplayReport
from epdsim.sut.schedule_recording import replay_schedules
from epdsim.sut.wire_recording import replay_wire


def replay_any(path: Path) -> ReplayReport:
    """Replay a recording against the model.

    Raises:
        InputError: Nothing is there, or it is of no kind that can be replayed.
    """
    if path.is_dir():
        return replay_wire(path)
    header = read_header(path)
    if {"config", "requests", "steps"} <= set(header):
        return replay_schedules(path)
    raise InputError(
        f"{str(path)!r}",
        "it is neither a wire recording (a folder with META.json) nor a schedule recording (lines with config, requests, steps)",
        "give one of these",
    )
