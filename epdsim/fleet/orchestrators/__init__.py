"""Orchestrators: who sends which leg of a request where, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from epdsim.core.records import record
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.orchestrators.base import Orchestrator
from epdsim.fleet.orchestrators.batched import batches
from epdsim.fleet.orchestrators.decode_first import DecodeFirst
from epdsim.fleet.orchestrators.encoding import Grouping
from epdsim.fleet.orchestrators.per_item import PerItem, one_each
from epdsim.fleet.orchestrators.push import Push

__all__ = ["ORCHESTRATORS", "Orchestrator", "Style"]


@record
class Style:
    """What makes one orchestrator differ from another.

    Attributes:
        kind: In which order it calls engines.
        group: Which items share an encode leg.
        shares_legs: Whether any do.
        decode_role: The decode engines' side of the KV connector: `"consumer"` where they wait for what is pushed.
    """

    kind: type[Orchestrator]
    group: Callable[[FleetConfig], Grouping]
    shares_legs: bool = False
    decode_role: str = "none"


ORCHESTRATORS: Mapping[str, Style] = {
    "per_item": Style(PerItem, lambda _: one_each),
    "batched": Style(PerItem, lambda config: batches(config.max_leg_items), shares_legs=True),
    "push": Style(Push, lambda _: one_each),
    "decode_first": Style(DecodeFirst, lambda _: one_each, decode_role="consumer"),
}
"""By their names in scenario files."""
