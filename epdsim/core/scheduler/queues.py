"""Queues of waiting requests, one per policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from epdsim.core.scheduler.state import RequestState


class WaitingQueue(Protocol):
    """Requests that wait, in the order in which they are to be admitted."""

    @property
    def members(self) -> Collection[RequestState]:
        """They, in no order that means anything: for who asks how many there are, which is asked at every step."""
        ...

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

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: deque[RequestState] = deque()

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self.members)

    def add(self, state: RequestState) -> None:
        """Queue at the end."""
        self.members.append(state)

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Queue at the front, the first of `states` first."""
        self.members.extendleft(reversed(states))

    def peek(self) -> RequestState:
        """The front."""
        return self.members[0]

    def pop(self) -> RequestState:
        """Take the front."""
        return self.members.popleft()

    def discard(self, state: RequestState) -> None:
        """Take out `state`."""
        if state in self.members:
            self.members.remove(state)

    def copy(self, states: Mapping[str, RequestState]) -> FcfsQueue:
        """The same order."""
        other = FcfsQueue()
        other.members.extend(states[state.request_id] for state in self.members)
        return other


class PriorityQueue:
    """By priority, then time of arrival, then id; a preempted request has no place of its own."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        # A release changes the urgency of a session within the heap, and what follows depends on each operation.
        self.members: list[RequestState] = []

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[RequestState]:
        heap = list(self.members)
        while heap:
            yield heappop(heap)

    def add(self, state: RequestState) -> None:
        """Queue at its place."""
        heappush(self.members, state)

    def add_first(self, states: Sequence[RequestState]) -> None:
        """Queue each at its place, the last first."""
        for state in reversed(states):
            self.add(state)

    def peek(self) -> RequestState:
        """The most urgent."""
        return self.members[0]

    def pop(self) -> RequestState:
        """Take the most urgent."""
        return heappop(self.members)

    def discard(self, state: RequestState) -> None:
        """Take out `state`."""
        self.members = [one for one in self.members if one is not state]
        heapify(self.members)

    def copy(self, states: Mapping[str, RequestState]) -> PriorityQueue:
        """The same heap."""
        other = PriorityQueue()
        other.members = [states[state.request_id] for state in self.members]
        return other


def waiting_queue(policy: str) -> WaitingQueue:
    """An empty queue for a policy."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
