"""Kinds of hand-over of embeddings, by their names in scenario files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from epdsim.core.records import record
from epdsim.fleet.ec.consumer import Consumer, Engine
from epdsim.fleet.ec.producer import Producer
from epdsim.fleet.ec.pull import PullSides
from epdsim.fleet.ec.push import PushSides
from epdsim.fleet.ec.store import StoreSides
from epdsim.fleet.health import Evictable
from epdsim.fleet.lines import Line
from epdsim.fleet.orchestrators.encoding import Encoding
from epdsim.fleet.orchestrators.store_encoding import StoreEncoding
from epdsim.fleet.orchestrators.transfer_encoding import TransferEncoding
from epdsim.fleet.world import World


class Sides(Protocol):
    """Makes the two sides of a hand-over in one fleet."""

    @property
    def keepers(self) -> Sequence[Evictable]:
        """Who keeps embeddings, and can lose them in a fault."""
        ...

    def producer(self, name: str) -> Producer:
        """The side of the encode instance of that name."""
        ...

    def consumer(self, engine: Engine, line: Line) -> Consumer:
        """The side of an engine that embeddings come to over a line."""
        ...


@record
class EcKind:
    """One kind.

    Attributes:
        sides: Instances' sides.
        encoding: The orchestrator's.
    """

    sides: Callable[[World], Sides]
    encoding: type[Encoding]


EC_KINDS: Mapping[str, EcKind] = {
    "store": EcKind(StoreSides, StoreEncoding),
    "pull": EcKind(PullSides, TransferEncoding),
    "push": EcKind(PushSides, TransferEncoding),
}
"""By their names in scenario files."""
