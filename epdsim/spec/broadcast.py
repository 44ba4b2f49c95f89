"""TP-SAME: what tensor-parallel ranks receive of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import PlanReceived
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached


def tp_same(event: PlanReceived, _engine: EngineState) -> Iterator[Finding]:
    """TP-SAME."""
    fits = event.message_bytes < event.chunk_bytes
    if len(event.held) > 1 and not fits:
        yield Reached(f"the message of step {event.step} overflows a chunk")
    for rank, digest in enumerate(event.held):
        if digest != event.sent:
            yield Broken(
                f"rank {rank} holds {digest or 'nothing'} of the tensors of step {event.step}, and {event.sent} was sent",
                (f"step {event.step}",),
            )
    law = (event.message_bytes, 0) if fits else (1, event.message_bytes)
    if (event.ring_bytes, event.socket_bytes) != law:
        yield Broken(
            f"the message of step {event.step} has {event.message_bytes} bytes, a chunk {event.chunk_bytes}: "
            f"{event.ring_bytes} went into the ring and {event.socket_bytes} over each rank's socket, not {law[0]} and {law[1]}",
            (f"step {event.step}",),
        )


TP_SAME = Property(
    "TP-SAME",
    "Ranks receive the payload that was sent; a message below the ring's chunk size is written once, another is sent to each rank.",
    "Ranks compute different things and hang in the next collective; or a plan costs as many copies as there are ranks.",
    "protocol",
    sometimes="a message that overflows a chunk comes to several ranks",
    evidence=("vLLM PRs 6183, 50606, 52041",),
    monitor=lambda: {PlanReceived: tp_same},
)
