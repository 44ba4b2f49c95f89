"""Family SIM: laws of a simulated fleet, from its events alone."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import (
    Admitted,
    EngineStarted,
    Event,
    FirstToken,
    LegSent,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached

_OF_A_REQUEST = (Rendered, LegSent, Admitted, FirstToken, RequestFinished, RequestFailed)


class SimBooks:
    """SIM-BOOKS."""

    def __init__(self) -> None:
        self._alive: set[str] = set()
        self._ended: set[str] = set()

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Each request is in exactly one book."""
        if isinstance(event, RequestArrived):
            if event.request_id in self._alive or event.request_id in self._ended:
                yield Broken(f"{event.request_id} arrives a second time", (event.request_id,))
            self._alive.add(event.request_id)
            return
        # A single engine tells of requests that no fleet injected.
        if not self._alive and not self._ended:
            return
        if isinstance(event, (RequestFinished, RequestFailed)):
            yield Reached(f"{event.request_id} ends")
            if event.request_id not in self._alive:
                yield Broken(f"{event.request_id} ends, and it is not in the system", (event.request_id,))
            self._alive.discard(event.request_id)
            self._ended.add(event.request_id)
        elif isinstance(event, (Rendered, FirstToken)) and event.request_id not in self._alive:
            yield Broken(
                f"{type(event).__name__} of {event.request_id}, which is not in the system", (event.request_id,)
            )


class SimOrder:
    """SIM-ORDER."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, str]] = {}
        self._arrived: set[str] = set()
        self._first: set[str] = set()

    def __call__(self, event: Event, _engine: EngineState) -> Iterator[Finding]:
        """Stages of one request follow each other in time."""
        if isinstance(event, RequestArrived):
            self._arrived.add(event.request_id)
            self._last[event.request_id] = event.time_ms, "RequestArrived"
            return
        if not isinstance(event, _OF_A_REQUEST) or event.request_id not in self._arrived:
            return
        name = type(event).__name__
        before_ms, before = self._last[event.request_id]
        if event.time_ms < before_ms:
            told = f"{name} of {event.request_id} at {event.time_ms} ms, and {before} was at {before_ms} ms"
            yield Broken(told, (event.request_id,))
        self._last[event.request_id] = event.time_ms, name
        if isinstance(event, FirstToken):
            self._first.add(event.request_id)
        if isinstance(event, RequestFinished):
            yield Reached(f"{event.request_id} went all the way")
            if event.output_tokens and event.request_id not in self._first:
                yield Broken(f"{event.request_id} ends before its first token", (event.request_id,))


class SimCap:
    """SIM-CAP."""

    def __init__(self) -> None:
        self._busy_until_ms: dict[str, float] = {}

    def __call__(self, event: Event, engine: EngineState) -> Iterator[Finding]:
        """Tokens within the budget, and one step at a time."""
        if isinstance(event, EngineStarted):
            self._busy_until_ms[event.instance] = event.time_ms
        if not isinstance(event, StepFinished) or engine.started is None:
            return
        yield Reached("a step")
        budget = event.num_steps * engine.started.max_num_batched_tokens
        if event.num_tokens > budget:
            yield Broken(
                f"{event.instance} computes {event.num_tokens} tokens in {event.num_steps} steps, budget {budget}"
            )
        began_ms = event.time_ms - event.duration_ms
        if began_ms < self._busy_until_ms.get(event.instance, 0.0) - 1e-6:
            yield Broken(f"{event.instance} begins a step at {began_ms} ms while it is busy with another one")
        self._busy_until_ms[event.instance] = event.time_ms


PROPERTIES = (
    Property(
        "SIM-BOOKS",
        "Injected = completed + failed + refused + queued + running at every moment, each request in exactly one of them.",
        "A rate is computed over requests that are counted twice, or not at all.",
        "fleet",
        sometimes="a request ends",
        monitor=SimBooks,
    ),
    Property(
        "SIM-CAP",
        "No instance computes more tokens than its steps allow, and no two steps of an instance overlap.",
        "A simulated instance does the work of two.",
        "fleet",
        sometimes="a step is told by an engine that told its settings",
        monitor=SimCap,
    ),
    Property(
        "SIM-ORDER",
        "Stages of one request follow each other in time, and the first token comes before the end.",
        "Latencies come out negative or too small.",
        "fleet",
        sometimes="a request goes all the way",
        monitor=SimOrder,
    ),
    Property(
        "SIM-LITTLE",
        "Mean number in the system = arrival rate times mean time in it, per station, within the window's edge error.",
        "A queue that loses or invents waiting.",
        "fleet",
        not_judged="no monitor yet: it needs windows; the sums are tested in tests/unit/fleet/test_fleet_laws.py",
    ),
    Property(
        "SIM-QUEUE",
        "Limiting cases agree with queueing theory, and at low load with the steady-state estimate.",
        "A simulator that is wrong where the answer is known is not right where it is not.",
        "fleet",
        not_judged="needs closed forms beside runs; see tests/unit/fleet/test_fleet_laws.py",
    ),
)
