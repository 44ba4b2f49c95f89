"""Queues of waiting requests, one per policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from epdsim.core.scheduler.state import RequestState


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
        """Take out one that ended while it waited, if it is there."""
        ...

    def copy(self, states: Mapping[str, RequestState]) -> WaitingQueue:
        """The same queue of other states, by id."""
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
        if state in self._states:
            self._states.remove(state)

    def copy(self, states: Mapping[str, RequestState]) -> FcfsQueue:
        """The same order."""
        other = FcfsQueue()
        other._states.extend(states[state.request_id] for state in self._states)
        return other


class PriorityQueue:
    """By priority, then time of arrival, then id; a preempted request has no place of its own."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        # A release changes the urgency of a session within the heap, and what follows depends on each operation.
        self._heap: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[RequestState]:
        heap = list(self._heap)
        while heap:
            yield heappop(heap)

    def add(self, state: RequestState) -> None:
        """Queue at its place."""
        heappush(self._heap, state)

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Queue each at its place, the last first."""
        for state in reversed(states):
            self.add(state)

    def peek(self) -> RequestState:
        """The most urgent."""
        return self._heap[0]

    def pop(self) -> RequestState:
        """Take the most urgent."""
        return heappop(self._heap)

    def discard(self, state: RequestState) -> None:
        """Take out `state`."""
        self._heap = [one for one in self._heap if one is not state]
        heapify(self._heap)

    def copy(self, states: Mapping[str, RequestState]) -> PriorityQueue:
        """The same heap."""
        other = PriorityQueue()
        other._heap = [states[state.request_id] for state in self._heap]
        return other


def waiting_queue(policy: str) -> WaitingQueue:
    """An empty queue for a policy."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
