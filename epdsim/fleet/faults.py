"""What goes wrong in a fleet, when, and how what is lost by it is told: plain records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from epdsim.core.errors import EpdsimError
from epdsim.core.records import record

LinkName = Literal["body", "ec", "kv"]
Span = tuple[float, float, float]
"""From when until when, in milliseconds, something goes how fast: 0 for not at all, 1 for as always."""


class RequestLostError(EpdsimError):
    """A request ended without its tokens."""


class ClientLeftError(RequestLostError):
    """Nobody waits for a request any more.

    Args:
        output_tokens: Tokens of this call that had been generated.
    """

    def __init__(self, output_tokens: int = 0) -> None:
        super().__init__(output_tokens)
        self.output_tokens = output_tokens

    def __str__(self) -> str:
        return "the client has left"


class InstanceLostError(RequestLostError):
    """A call was lost with the instance that it was at, so that another instance may take it.

    Args:
        instance: Which.
        lost_ms: When.
        output_tokens: Tokens that the client had of this call.
    """

    def __init__(self, instance: str, lost_ms: float, output_tokens: int = 0) -> None:
        super().__init__(instance, lost_ms, output_tokens)
        self.instance, self.lost_ms, self.output_tokens = instance, lost_ms, output_tokens

    def __str__(self) -> str:
        return f"{self.instance} was lost"


class EmbeddingLostError(InstanceLostError):
    """A call failed because embeddings that it relies on cannot be had.

    Args:
        instance: Where.
        lost_ms: When.
        output_tokens: Tokens that the client had of this call.
        reason: In a sentence.
    """

    def __init__(self, instance: str, lost_ms: float, output_tokens: int, reason: str) -> None:
        super().__init__(instance, lost_ms, output_tokens)
        self.reason = reason
        self.args = (instance, lost_ms, output_tokens, reason)  # SimPy makes copies of them

    def __str__(self) -> str:
        return self.reason


@record
class Loss:
    """An instance ends with all that it holds; when it comes back, it begins anew.

    Attributes:
        instance: Its name, for example `"prefill-0"`.
        at_ms: When.
        back_ms: When it comes back; None for never.
    """

    instance: str
    at_ms: float
    back_ms: float | None = None


@record
class Faults:
    """All that goes wrong in a run.

    Attributes:
        losses: Instances that end.
        slow_encoders: By name of an encode instance, when it is how slow.
        links: By kind of link, when it moves how fast.
        ec_evictions_ms: When the EC store loses every embedding that nobody has a lease on.
        max_retries: How often a call that was lost with its instance is sent again.
        detect_ms: From a loss until the orchestrator knows: until then it sends there, and its calls do not return.
        give_up_ms: How long a request waits where all instances of a pool are lost.
    """

    losses: Sequence[Loss] = ()
    slow_encoders: Mapping[str, Sequence[Span]] | None = None
    links: Mapping[LinkName, Sequence[Span]] | None = None
    ec_evictions_ms: Sequence[float] = ()
    max_retries: int = 2
    detect_ms: float = 0.0
    give_up_ms: float = 60_000.0

    @property
    def slow_until_ms(self) -> float:
        """When the last slow or cut link and the last slow encoder are as always again; 0 without any."""
        spans = [*(self.slow_encoders or {}).values(), *(self.links or {}).values()]
        return max((until_ms for some in spans for _, until_ms, _ in some), default=0.0)


NO_FAULTS = Faults()
"""Nothing goes wrong."""


class Pace:
    """How fast something goes over time: as always, except in some spans.

    Args:
        spans: In order of time, none into the next.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def end_ms(self, start_ms: float, work_ms: float) -> float:
        """When work that takes so long at the usual pace is done."""
        now_ms = start_ms
        for begin_ms, until_ms, speed in self._spans:
            if until_ms <= now_ms:
                continue
            if now_ms < begin_ms:
                if work_ms <= begin_ms - now_ms:
                    break
                work_ms -= begin_ms - now_ms
                now_ms = begin_ms
            if work_ms <= (until_ms - now_ms) * speed:
                return now_ms + work_ms / speed if speed else now_ms
            work_ms -= (until_ms - now_ms) * speed
            now_ms = until_ms
        return now_ms + work_ms

    def work_ms(self, start_ms: float, end_ms: float) -> float:
        """How much is done meanwhile of work that takes so long at the usual pace."""
        done_ms = end_ms - start_ms
        for begin_ms, until_ms, speed in self._spans:
            within_ms = min(end_ms, until_ms) - max(start_ms, begin_ms)
            if within_ms > 0:
                done_ms -= (1.0 - speed) * within_ms
        return done_ms
