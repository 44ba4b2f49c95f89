"""Events of what goes wrong in a fleet: instances and embeddings that are lost, legs that are sent again."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.events.base import Event


class InstanceLost(Event, frozen=True):
    """An instance ends, with all that it holds."""


class InstanceBack(Event, frozen=True):
    """An instance that was lost begins anew, with nothing in its caches."""


class EcEvicted(Event, frozen=True):
    """The EC store loses embeddings that nobody has a lease on."""

    mm_hashes: Sequence[str]


class LegRetried(Event, frozen=True):
    """The orchestrator learns that a leg was lost with its instance, or that embeddings cannot be had, and sends it again.

    Attributes:
        leg: `"encode"` or `"generate"`: everything from the prompt on, and before it what of its embeddings is lost.
        lost: The instance; of embeddings that cannot be had, the engine that needed them.
        attempt: Which one begins now; 1 is the first after the loss.
        delivered_tokens: Output tokens that the client has; they become part of the prompt.
    """

    request_id: str
    leg: str
    lost: str
    attempt: int
    delivered_tokens: int = 0


class LegRecovered(Event, frozen=True):
    """What was lost with an instance goes on: the next output token, or the embedding.

    Attributes:
        lost_ms: When the instance was lost.
    """

    request_id: str
    lost_ms: float
