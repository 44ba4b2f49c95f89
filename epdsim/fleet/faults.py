"""What goes wrong in a fleet, when, and what is done about it: plain records, and the process that brings it about."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import simpy

from epdsim.core.errors import EpdsimError
from epdsim.events import EcEvicted, InstanceBack, InstanceLost

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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


class Surroundings(Protocol):
    """What of a world faults need."""

    @property
    def env(self) -> simpy.Environment:
        """The clock."""
        ...

    def after(self, duration_ms: float) -> simpy.Event:
        """Fires after a duration."""
        ...

    def emit(self, event: Any, /) -> None:
        """Tell an event."""
        ...


class Mortal(Protocol):
    """An instance that can be lost.

    Attributes:
        is_up: Whether the orchestrator takes it for alive.
    """

    name: str
    is_up: bool

    def lose(self) -> None:
        """End, with all that it holds."""
        ...

    def give_up_lost(self) -> None:
        """Tell callers that what they wait for was lost."""
        ...

    def come_back(self) -> None:
        """Begin anew."""
        ...


class Health:
    """What the orchestrator knows of its instances.

    Args:
        world: Clock.
        faults: How long it waits.
    """

    def __init__(self, world: Surroundings, faults: Faults) -> None:
        self._world, self._faults = world, faults
        self._back = world.env.event()

    def up(
        self, pool: Sequence[Any], stage: str, beside: Sequence[simpy.Event] = ()
    ) -> Generator[simpy.Event, Any, Sequence[Any]]:
        """Instances of a pool that are up, once there are any.

        Args:
            pool: All of them.
            stage: What they do, for the reason.
            beside: What the caller waits for too; when it fails, so does this.

        Raises:
            RequestLostError: None comes back in time.
        """
        patience = None
        while not (found := [one for one in pool if one.is_up]):
            if patience is None:
                patience = self._world.after(self._faults.give_up_ms)
            if patience.processed:
                waited = f"{self._faults.give_up_ms:g} ms"
                raise RequestLostError(f"every {stage} instance is lost, and none came back within {waited}")
            yield simpy.AnyOf(self._world.env, [self._back, patience, *beside])
        return found

    def watch(self, losses: Sequence[Loss], instance: Mortal) -> Generator[simpy.Event, Any, None]:
        """The process of the losses of one instance, in order of time; it is back before it is lost again at the same moment."""
        for loss in losses:
            yield from self._lose(loss, instance)

    def _lose(self, loss: Loss, instance: Mortal) -> Generator[simpy.Event, Any, None]:
        world, faults = self._world, self._faults
        yield world.after(max(loss.at_ms - world.env.now, 0.0))
        instance.lose()
        world.emit(InstanceLost(world.env.now, instance.name))
        away_ms = faults.detect_ms if loss.back_ms is None else min(faults.detect_ms, loss.back_ms - loss.at_ms)
        if away_ms:
            yield world.after(away_ms)
        instance.is_up = False
        instance.give_up_lost()
        if loss.back_ms is None:
            return
        yield world.after(loss.back_ms - loss.at_ms - away_ms)
        world.emit(InstanceBack(world.env.now, instance.name))
        instance.come_back()
        instance.is_up = True
        back, self._back = self._back, world.env.event()
        back.succeed()


class Evictable(Protocol):
    """What keeps embeddings and can lose them."""

    name: str

    def evict(self) -> list[str]:
        """Drop all that nobody reads; its identifiers."""
        ...


def evict(world: Surroundings, at_ms: float, keepers: Sequence[Evictable]) -> Generator[simpy.Event, Any, None]:
    """The process of one loss of embeddings."""
    yield world.after(at_ms)
    for keeper in keepers:
        world.emit(EcEvicted(world.env.now, keeper.name, keeper.evict()))
