"""A property that must be violated is: what proves that violations would be found, made small and told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epdsim.events import Event, Preempted
from epdsim.spec import Broken, EngineState, Finding, Property, Reached
from epdsim.spec.story import MOST_LINES
from properties.explorations import RESUMES


def nobody_is_preempted(event: Event, _engine: EngineState) -> Iterator[Finding]:
    """Wrong on purpose."""
    yield Reached("an event")
    if isinstance(event, Preempted):
        yield Broken(f"{event.request_id} is preempted", (event.request_id,))


CANARY = Property(
    "CANARY",
    "Nobody is ever preempted.",
    "It is wrong on purpose.",
    "engine",
    sometimes="anything happens",
    monitor=lambda: nobody_is_preempted,
)


@pytest.mark.xdist_group("engine")
def test_the_canary_dies(epd_session):
    if not epd_session.hunter.can(RESUMES):
        pytest.skip("the system has no engine")
    story = epd_session.canary(CANARY, RESUMES)
    told = [line for line in story if line.lstrip()[:1].isdigit() and ". " in line[:5]]
    assert 2 <= len(told) <= MOST_LINES
    assert told[-1].endswith("is preempted")
