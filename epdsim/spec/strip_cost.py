"""STRIP-COST and STRIP-LATE: what is sent is bounded by what is new, and can be sent as late as it is needed."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import (
    Admitted,
    PayloadsSent,
    StepPlanned,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached
from epdsim.spec.steps import BEYOND


def strip_cost(event: Admitted, engine: EngineState) -> Iterator[Finding]:
    """STRIP-COST: the items that workers are told of are counted as long as they keep what they were told."""
    known = engine.requests.get(event.request_id)
    # The first turn and those after a preemption are told in full.
    if known is None or not known.added or known.num_told == len(event.payloads):
        return
    if event.payloads:
        yield Reached(f"{event.request_id} goes on with new items")
    if known.num_told > len(known.items):
        yield Broken(
            f"{event.request_id} goes on, and workers are told of {len(event.payloads)} items, so that they have been told of "
            f"{known.num_told} where it has {len(known.items)}",
            (event.request_id,),
        )


class StripLate:
    """STRIP-LATE."""

    def __init__(self) -> None:
        self._sent: list[tuple[str, int]] = []

    def by_kind(self) -> Monitor:
        """Look whether each payload comes with the step that encodes its item."""
        return {Admitted: self._admitted, PayloadsSent: self._payloads_sent, StepPlanned: self._planned}

    def _admitted(self, event: Admitted, engine: EngineState) -> None:
        if event.payloads and engine.started is not None and engine.started.sends_late:
            self._sent += [(event.request_id, index) for index, kind in enumerate(event.payloads) if kind == "full"]

    def _payloads_sent(self, event: PayloadsSent, engine: EngineState) -> None:
        if engine.started is not None and engine.started.sends_late:
            self._sent += [(event.request_id, index) for index, kind in event.payloads.items() if kind == "full"]

    def _planned(self, event: StepPlanned, _engine: EngineState) -> list[Finding] | None:
        if not self._sent:
            return None
        found: list[Finding] = []
        for request_id, index in self._sent:
            if index in event.scheduled_encoder_inputs.get(request_id, ()):
                found.append(Reached(f"item {index} of {request_id} is sent with the step that encodes it"))
            else:
                told = f"brings the payload of item {index} of {request_id}, which it does not encode"
                found.append(Broken(f"step {event.step} {told}", (request_id,)))
        self._sent.clear()
        return found


PROPERTIES = (
    Property(
        "STRIP-COST",
        "Work and bytes per step are bounded by the step's new work, not by the length of the session.",
        "Realtime audio grows by milliseconds per step for each minute of the session.",
        "engine",
        sometimes="a session goes on with new items",
        evidence=("vLLM issues 58324, 50860",),
        twin="STRIP-AVAIL",
        monitor=lambda: {Admitted: strip_cost},
        of_media=True,
        copes=BEYOND,
        exempt={
            "recorded": "the recordings of the gate hold no sessions",
            "simulated": "a fleet has no streaming sessions",
        },
    ),
    Property(
        "STRIP-LATE",
        "A payload sent only with the step that encodes its item satisfies all of the above and sends no more bytes.",
        "The variant that would end the losses must not cost what the strip saves.",
        "engine",
        sometimes="a payload comes with the step that encodes its item",
        evidence=("vLLM PR 54994",),
        twin="STRIP-AVAIL",
        monitor=lambda: StripLate().by_kind(),
        exempt={
            "recorded": "no release sends payloads late",
            "simulated": "no fleet of the quick lane sends payloads late",
            "vllm": "no release sends payloads late",
        },
    ),
)
