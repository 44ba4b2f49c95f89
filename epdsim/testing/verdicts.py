"""What stands in a report in place of a verdict or of a story that could not be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

FAILED = "failed"
"""Outcome of a property whose test came to no verdict, because the system or the test raised."""

ReportedOutcome = Literal["holds", "violated", "inconclusive", "not run", "failed"]
"""What a report says of a property."""


def failed(property_id: str, error: Exception) -> dict[str, Any]:
    """What stands for the verdict of a property whose test raised."""
    return failed_for(property_id, line_of(error))


def failed_for(property_id: str, reason: str) -> dict[str, Any]:
    """The same, with the reason in words."""
    return {"id": property_id, "outcome": FAILED, "reason": f"its test failed: {reason}"}


def line_of(error: Exception) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def note_of(story: Mapping[str, Any]) -> str:
    """The command that plays a story again, or why there is none."""
    return story.get("replay") or story.get("reason", "")
