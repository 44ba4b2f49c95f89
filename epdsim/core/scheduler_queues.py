"""Queues of waiting requests, one per policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from epdsim.core.scheduler_state import RequestState


class WaitingQueue(Protocol):
    """Requests that wait, in the order in which they are to be admitted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestState]:
        """From the next to admit to the last."""
        ...

    def add(self, state: RequestState) -> None:
        """A new arrival."""
        ...

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Bring back requests, in their order and ahead of the others where the policy allows."""
        ...

    def peek(self) -> RequestState:
        """The next to admit; the queue is not empty."""
        ...

    def pop(self) -> RequestState:
        """Take the next to admit."""
        ...

    def discard(self, state: RequestState) -> None:
        """Take out one that ended while it waited."""
        ...


class FcfsQueue:
    """First come, first served; preempted requests return to the front."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: deque[RequestState] = deque()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states)

    def add(self, state: RequestState) -> None:
        """Queue at the end."""
        self._states.append(state)

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Queue at the front, the first of `states` first."""
        self._states.extendleft(reversed(states))

    def peek(self) -> RequestState:
        """The front."""
        return self._states[0]

    def pop(self) -> RequestState:
        """Take the front."""
        return self._states.popleft()

    def discard(self, state: RequestState) -> None:
        """Take out `state`."""
        self._states.remove(state)


class PriorityQueue:
    """By priority, then time of arrival, then id; a preempted request has no place of its own."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        # Ids are unique, so comparison never reaches the states.
        self._heap: list[tuple[tuple[int, float, str], RequestState]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[RequestState]:
        return (state for _, state in sorted(self._heap, key=lambda entry: entry[0]))

    def add(self, state: RequestState) -> None:
        """Queue at its place."""
        heappush(self._heap, (state.urgency, state))

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Queue each at its place."""
        for state in states:
            self.add(state)

    def peek(self) -> RequestState:
        """The most urgent."""
        return self._heap[0][1]

    def pop(self) -> RequestState:
        """Take the most urgent."""
        return heappop(self._heap)[1]

    def discard(self, state: RequestState) -> None:
        """Take out `state`."""
        self._heap.remove((state.urgency, state))
        heapify(self._heap)


def waiting_queue(policy: str) -> WaitingQueue:
    """An empty queue for a policy."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
