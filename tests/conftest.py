"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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
