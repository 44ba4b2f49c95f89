"""One row of the table of releases (`core.releases.dialects`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epdsim.core.records import record
from epdsim.core.rules import Rule

FIRST, LAST = 25, 33
"""Minor versions of the first and the last release in the table: 0.25 and 0.33."""


@record
class Deviation:
    """What a span of releases does in place of a rule's ideal.

    Attributes:
        rule: The rule.
        first: Minor version of the first release that does so.
        last: Minor version of the last one.
        behaviour: What stands in the rule's place.
        why: What differs, in a sentence, with its source.
    """

    rule: Rule[Any]
    first: int
    last: int
    behaviour: Callable[..., Any]
    why: str
