"""Which instance of a pool takes the next request. A router sees only what it could know: what it sent and what came back."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from epdsim.core.prompt import RunPrompt, TokenRun


class Loaded(Protocol):
    """What a router may ask of an instance: requests sent to it and not yet answered, in the orchestrator's books."""

    outstanding: int


Instance = TypeVar("Instance", bound=Loaded)


class Router(Protocol):
    """Chooses an instance."""

    def __call__(self, pool: Sequence[Instance], prompt: RunPrompt, mm_hashes: Sequence[str] = ()) -> Instance:
        """The instance of a pool that gets a leg with this prompt, or of these items."""
        ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, pool: Sequence[Instance], prompt: RunPrompt, mm_hashes: Sequence[str] = ()) -> Instance:  # noqa: ARG002
        """The next in turn."""
        chosen = pool[self._next % len(pool)]
        self._next += 1
        return chosen


class LeastLoaded:
    """Fewest outstanding requests; ties go in turn, so that idle equals share the work."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, pool: Sequence[Instance], prompt: RunPrompt, mm_hashes: Sequence[str] = ()) -> Instance:  # noqa: ARG002
        """The least loaded, looking first at the one after the last chosen."""
        order = [(self._next + step) % len(pool) for step in range(len(pool))]
        index = min(order, key=lambda candidate: pool[candidate].outstanding)
        self._next = index + 1
        return pool[index]


class PrefixAffinity:
    """Where the longest beginning of the prompt was sent last, unless that instance is much busier than the least loaded one.

    Its memory is what it sent, not what the instances still hold: like a real router's index it can be stale.

    Args:
        remembered: Beginnings of prompts that it remembers, least recently used first to go.
        busier: Outstanding requests more than the least loaded one's, from which on load decides.
    """

    def __init__(self, remembered: int = 1 << 18, busier: int = 8) -> None:
        self._remembered, self._busier = remembered, busier
        self._sent: OrderedDict[int, Loaded] = OrderedDict()
        self._least_loaded = LeastLoaded()

    def __call__(self, pool: Sequence[Instance], prompt: RunPrompt, mm_hashes: Sequence[str] = ()) -> Instance:
        """The instance that knows most of the prompt."""
        beginnings = list(_beginnings(prompt.runs))
        known = next((self._sent[one] for one in reversed(beginnings) if one in self._sent), None)
        # One that is lost is not in the pool.
        chosen = next((one for one in pool if one is known), None)
        if chosen is None or chosen.outstanding > min(one.outstanding for one in pool) + self._busier:
            chosen = self._least_loaded(pool, prompt, mm_hashes)
        for beginning in beginnings:
            self._sent[beginning] = chosen
            self._sent.move_to_end(beginning)
        while len(self._sent) > self._remembered:
            self._sent.popitem(last=False)
        return chosen


def _beginnings(runs: Sequence[TokenRun]) -> Iterator[int]:
    """One key for each beginning of the prompt that ends with a run."""
    key = 0
    for run in runs:
        key = hash((key, run))
        yield key


class MediaAffinity:
    """Where most of the items were sent last, unless that instance is much busier than the least loaded one.

    Its memory is what it sent, not what the instances still hold, and it lags: what was sent a moment ago is not in it yet, as in
    a router that hears of caches by messages, or one of several replicas. So it can be wrong.

    Args:
        now_ms: The clock.
        stale_ms: How long it takes until what was sent is remembered.
        remembered: Items that it remembers, least recently used first to go.
        busier: As of `PrefixAffinity`.
    """

    def __init__(
        self, now_ms: Callable[[], float], stale_ms: float, remembered: int = 1 << 18, busier: int = 8
    ) -> None:
        self._now_ms, self._stale_ms, self._remembered, self._busier = now_ms, stale_ms, remembered, busier
        self._sent: OrderedDict[str, Loaded] = OrderedDict()
        self._unseen: deque[tuple[float, str, Loaded]] = deque()
        self._least_loaded = LeastLoaded()

    def __call__(self, pool: Sequence[Instance], prompt: RunPrompt, mm_hashes: Sequence[str] = ()) -> Instance:
        """The instance that was sent most of the items."""
        now_ms = self._now_ms()
        while self._unseen and self._unseen[0][0] <= now_ms:
            self._remember(*self._unseen.popleft()[1:])
        known = [self._sent.get(mm_hash) for mm_hash in mm_hashes]
        # One that is lost is not in the pool; of equals the first one.
        chosen = max(pool, key=lambda one: sum(other is one for other in known))
        is_strange = not any(other is chosen for other in known)
        if is_strange or chosen.outstanding > min(one.outstanding for one in pool) + self._busier:
            chosen = self._least_loaded(pool, prompt, mm_hashes)
        for mm_hash in mm_hashes:
            self._unseen.append((now_ms + self._stale_ms, mm_hash, chosen))
        return chosen

    def _remember(self, mm_hash: str, instance: Loaded) -> None:
        self._sent[mm_hash] = instance
        self._sent.move_to_end(mm_hash)
        if len(self._sent) > self._remembered:
            self._sent.popitem(last=False)


ROUTERS: Mapping[str, Callable[[Callable[[], float], float], Router]] = {
    "round_robin": lambda _now_ms, _stale_ms: RoundRobin(),
    "least_loaded": lambda _now_ms, _stale_ms: LeastLoaded(),
    "prefix_affinity": lambda _now_ms, _stale_ms: PrefixAffinity(),
    "media_affinity": MediaAffinity,
}
"""By their names in scenario files."""


def router(name: str, now_ms: Callable[[], float] = lambda: 0.0, stale_ms: float = 0.0) -> Router:
    """A fresh router.

    Args:
        name: One of `ROUTERS`.
        now_ms: The clock.
        stale_ms: How far behind its memory is, where it says so.
    """
    return ROUTERS[name](now_ms, stale_ms)
