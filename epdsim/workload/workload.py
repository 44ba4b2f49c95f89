"""A workload: requests that can be asked for again and again, and what was assumed to make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from epdsim.core.records import record
from epdsim.workload.request import WorkloadRequest


@record
class ClosedLoop:
    """Clients that send their next request only when one of theirs has ended.

    Attributes:
        requests: In order of sending.
        concurrency: Requests in flight at any time, as long as some are left.
        keeps_arrivals: Whether none is sent before its `arrival_ms`, so that fewer may be in flight; otherwise that means nothing.
    """

    requests: Iterable[WorkloadRequest]
    concurrency: int
    keeps_arrivals: bool = False


def _between(requests: Iterable[WorkloadRequest], start_ms: float, end_ms: float) -> Iterator[WorkloadRequest]:
    for request in requests:
        if request.arrival_ms >= end_ms:
            return
        if request.arrival_ms >= start_ms:
            yield replace(request, arrival_ms=request.arrival_ms - start_ms)


def _at_load(requests: Iterable[WorkloadRequest], load: float) -> Iterator[WorkloadRequest]:
    for request in requests:
        yield replace(request, arrival_ms=request.arrival_ms / load)


@record
class Workload:
    """Requests, where they come from, and what was assumed.

    Iterating it starts anew each time and yields the same requests; none is held in memory.

    Attributes:
        name: For tables.
        source: File, folder or generator that the requests come from.
        make_requests: Starts an iteration.
        assumptions: One line on what the source does not say and was added (overlay share and seed, positions); reports print it.
        concurrency: None when requests arrive by the clock, else the number in flight of a closed loop.
        keeps_arrivals: Whether a closed loop sends none before its arrival time (vllm bench's max concurrency with a request rate).
        most_text_tokens: Tokens of prompt and output that no request exceeds, where it is known that each has an id and contents of
            its own or shared text, no media, and a client that stays; None where one has to look.
    """

    name: str
    source: str
    make_requests: Callable[[], Iterator[WorkloadRequest]]
    assumptions: str = ""
    concurrency: int | None = None
    keeps_arrivals: bool = False
    most_text_tokens: int | None = None

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return self.make_requests()

    def between(self, start_s: float, end_s: float) -> Workload:
        """The requests that arrive from `start_s` to `end_s` (excluded); the first moment of that is then the start."""
        told = f"{self.assumptions}; arrivals from {start_s:g} to {end_s:g} s".removeprefix("; ")
        return replace(self, make_requests=partial(_between, self, start_s * 1e3, end_s * 1e3), assumptions=told)

    def at_load(self, load: float) -> Workload:
        """The same requests `load` times as fast one after the other."""
        told = f"{self.assumptions}; {load:g} times the load".removeprefix("; ")
        return replace(self, make_requests=partial(_at_load, self, load), assumptions=told)

    @property
    def closed_loop(self) -> ClosedLoop | None:
        """The closed loop, or None when requests arrive by the clock."""
        return None if self.concurrency is None else ClosedLoop(self, self.concurrency, self.keeps_arrivals)
