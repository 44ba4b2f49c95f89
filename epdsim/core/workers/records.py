"""What a worker says of a step: the tokens that it yields, and what would have gone wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from epdsim.core.items import MediaFeature
from epdsim.core.positions import PositionLayout
from epdsim.core.records import record


@record
class Violation:
    """One thing that a worker could not do, or would have done wrong.

    Attributes:
        property_id: The property that it breaks, for example `"STRIP-AVAIL"`.
        step: Number of the step.
        request_id: Whose computation it is.
        what: In words, without id and step.
    """

    property_id: str
    step: int
    request_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.property_id} in step {self.step}: {self.request_id} {self.what}"


@record
class EncoderRun:
    """What a worker holds of item `index` when its encoder is to run on it, in the words of `core.strip.payload_kind`."""

    request_id: str
    index: int
    held: str


@record
class Splice:
    """Embeddings of item `index` that a worker splices into the tokens `[start, end)` of the prompt.

    Attributes:
        places: Tokens of the prompt that take one.
        rows: The row of the entry for each.
        num_rows: Of the entry; None when there is none.
        is_own: Whether the entry was made of that item.
    """

    request_id: str
    index: int
    start: int
    end: int
    places: Sequence[int]
    rows: Sequence[int]
    num_rows: int | None
    is_own: bool = True


@record
class WorkerStep:
    """A step as a worker ran it.

    Attributes:
        sampled: The token of each request that reached the end of its known tokens, none of the others.
        encoded: Identifiers that the encoder ran on, in order.
        violations: What went wrong; empty in a sound step.
        runs: Encoder runs that the plan asks for, with what is held.
        splices: Embeddings that chunks take.
    """

    sampled: Mapping[str, Sequence[int]]
    encoded: Sequence[str] = ()
    violations: Sequence[Violation] = ()
    runs: Sequence[EncoderRun] = ()
    splices: Sequence[Splice] = ()


@record
class RunnerStyle:
    """What the two generations of vLLM's model runner do differently with what they keep.

    Attributes:
        name: As in `SchedulerConfig.model_runner`.
        forgets_preempted: Drop all of a preempted request (v2) or keep it until it finishes (v1); a request that comes back is a
            new one for the first and a difference for the second.
        encodes_again: Run the encoder on an item whose embedding is there already, and replace it (v1), or skip it (v2).
    """

    name: str
    forgets_preempted: bool
    encodes_again: bool


STYLES: Mapping[str, RunnerStyle] = MappingProxyType(
    {
        "v1": RunnerStyle("v1", forgets_preempted=False, encodes_again=True),
        "v2": RunnerStyle("v2", forgets_preempted=True, encodes_again=False),
    }
)
"""By name of the runner (vLLM 0.25 to 0.32)."""


@dataclass(slots=True)
class HeldRequest:
    """What a worker keeps of a request from step to step.

    Attributes:
        features: As they were sent, with what was sent later laid over them.
        block_ids: Block table.
        num_computed_tokens: After the last step.
        layout: Positions, computed once from the features of the admission; None when they could not be.
    """

    features: list[MediaFeature]
    block_ids: list[int]
    num_computed_tokens: int
    layout: PositionLayout | None = None


@record
class Embedding:
    """An entry of the encoder cache on a worker.

    Attributes:
        content: What it was made of.
        num_embeds: Its rows.
    """

    content: bytes
    num_embeds: int


class PayloadReceiver(Protocol):
    """What stands between the broadcast and a worker's features: the shared-memory cache's reading side, or nothing."""

    def receive(self, request_id: str, features: Sequence[MediaFeature]) -> Sequence[MediaFeature]:
        """Features with payloads in place of addresses.

        Raises:
            StaleHandleError: An address no longer holds what it did.
        """
        ...

    def ended(self, request_id: str) -> None:
        """A request has ended and will not be asked for again."""
        ...


@dataclass(slots=True)
class StepNotes:
    """What is noted while a step runs.

    Attributes:
        step: Its number.
        encoded: Identifiers that the encoder ran on.
        violations: What went wrong.
        spoilt: Requests whose chunk of this step is computed from wrong input.
        runs: See `WorkerStep`.
        splices: See `WorkerStep`.
    """

    step: int
    encoded: list[str] = field(default_factory=list[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    spoilt: dict[str, str] = field(default_factory=dict[str, str])
    runs: list[EncoderRun] = field(default_factory=list[EncoderRun])
    splices: list[Splice] = field(default_factory=list[Splice])

    def note(self, property_id: str, request_id: str, what: str, *, spoils: bool = False) -> None:
        """Note a violation, and whether the computation of the request is wrong from here on."""
        self.violations.append(Violation(property_id, self.step, request_id, what))
        if spoils:
            self.spoilt[request_id] = what
