"""One request on its way through the fleet, as its orchestrator keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.records import record
from epdsim.core.request import EcOffer
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import ClientLeftError, InstanceLostError
from epdsim.fleet.jobs import Job, Setback
from epdsim.fleet.render import RenderedRequest
from epdsim.workload.request import WorkloadRequest


@record
class Handles:
    """What an engine is told of embeddings that were encoded for a request.

    Attributes:
        params: `ec_transfer_params` as the call carries them.
        remote_embeds: Identifiers that stand in a store that everybody reads.
        offers: By identifier, who serves the embedding or which transfer brings it; None with a store.
    """

    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remote_embeds: frozenset[str] = frozenset()
    offers: Mapping[str, EcOffer] | None = None


NO_HANDLES = Handles()
"""Nothing was encoded."""


class Task:
    """A request under way.

    Args:
        source: As the workload states it.

    Attributes:
        request_id: The client's.
        stage: Where it is: `"render"`, `"encode"` or `"generate"`.
        rendered: As it goes to engines now: with output that the client has as the end of its prompt.
        handles: Of its embeddings; None while they are still to be had.
        leased: Identifiers that it has leases on in the store of embeddings.
        consumer: The engine chosen to compute its prompt before its embeddings are there.
        setback: What was lost of it.
        num_losses: How often it was lost with an instance.
        num_misses: How often embeddings that it relies on could not be had.
        num_encodes: How often its embeddings were asked for.
        is_left: Whether its client has left; noticed with the end of what is under way for it, in an engine with that of the step.
        call: The call to an engine that it waits for, with the engine; None while there is none.
    """

    __slots__ = (
        "call",
        "consumer",
        "handles",
        "is_left",
        "leased",
        "num_encodes",
        "num_losses",
        "num_misses",
        "rendered",
        "request_id",
        "setback",
        "source",
        "stage",
    )

    rendered: RenderedRequest

    def __init__(self, source: WorkloadRequest) -> None:
        self.source, self.request_id, self.stage = source, source.request_id, "render"
        self.handles: Handles | None = None
        self.leased: list[str] = []
        self.consumer: EngineInstance | None = None
        self.setback: Setback | None = None
        self.num_losses = self.num_misses = self.num_encodes = 0
        self.is_left = False
        self.call: tuple[EngineInstance, Job] | None = None

    @property
    def has_first_token(self) -> bool:
        """Whether its client has any."""
        is_answering = self.call is not None and self.call[1].is_visible and self.call[1].output_tokens > 0
        return is_answering or self.num_delivered > 0

    def leave(self) -> None:
        """Its client leaves."""
        self.is_left = True
        if self.call is not None:
            engine, job = self.call
            engine.leave(job)

    def check_client(self) -> None:
        """Go on only where somebody waits.

        Raises:
            ClientLeftError: Nobody does.
        """
        if self.is_left:
            raise ClientLeftError

    @property
    def num_delivered(self) -> int:
        """Output tokens that the client had before the last loss."""
        return self.setback.delivered_tokens if self.setback is not None else 0

    @property
    def num_left(self) -> int:
        """Output tokens that the client still waits for."""
        return self.source.output_tokens - self.num_delivered

    @property
    def mm_hashes(self) -> Sequence[str]:
        """Its distinct items."""
        return list(self.rendered.media) if self.rendered.items else ()

    def lost(self, loss: InstanceLostError) -> None:
        """A call was lost: what the client has becomes part of its prompt."""
        before = self.num_delivered
        self.setback = Setback(loss.lost_ms, before + loss.output_tokens)
        if loss.output_tokens:
            output = TokenRun(("output", self.request_id), before, loss.output_tokens)
            self.rendered = replace(self.rendered, prompt=RunPrompt([*self.rendered.prompt.runs, output]))
