"""What a property says of events."""

from __future__ import annotations

from epdsim.spec import REGISTER, judge


def outcome(name, *events):
    """The outcome of one property."""
    return judge(events, [REGISTER[name]])[name].outcome
