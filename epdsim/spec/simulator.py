"""Family SIM: laws of a simulated fleet, from its events alone.

What is kept of a request is forgotten when it ends, so that a long run can be judged as it goes.
"""

from __future__ import annotations

from epdsim.events import (
    Admitted,
    FirstToken,
    KvTransferred,
    LegSent,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.spec.capacity import SimCap
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached
from epdsim.spec.stations import SimFair, SimLittle

_OfARequest = (
    RequestArrived | Rendered | LegSent | Admitted | KvTransferred | FirstToken | RequestFinished | RequestFailed
)
_ENDS = Reached("a request ends")
_AN_END = (_ENDS,)
MOST_STEPS_AT_ONCE = 10_000
"""Steps of one engine, one after the other, in which no time passes, that count as spinning."""


class SimBooks:
    """SIM-BOOKS."""

    def __init__(self) -> None:
        self._alive: set[str] = set()
        self._is_fleet = False

    def by_kind(self) -> Monitor:
        """Each request is in exactly one book."""
        return {
            RequestArrived: self._arrives,
            Rendered: self._goes_on,
            FirstToken: self._goes_on,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _arrives(self, event: RequestArrived, _engine: EngineState) -> tuple[Finding, ...] | None:
        self._is_fleet = True
        request_id = event.request_id
        if request_id in self._alive:
            return (Broken(f"{request_id} arrives a second time", (request_id,)),)
        self._alive.add(request_id)
        return None

    def _goes_on(self, event: Rendered | FirstToken, _engine: EngineState) -> tuple[Finding, ...] | None:
        request_id = event.request_id
        # A single engine tells of requests that no fleet injected.
        if request_id in self._alive or not self._is_fleet:
            return None
        return (Broken(f"{type(event).__name__} of {request_id}, which is not in the system", (request_id,)),)

    def _ends(self, event: RequestFinished | RequestFailed, _engine: EngineState) -> tuple[Finding, ...] | None:
        request_id = event.request_id
        if request_id in self._alive:
            self._alive.discard(request_id)
            return _AN_END
        told = f"{request_id} ends, and it is not in the system"
        return (_ENDS, Broken(told, (request_id,))) if self._is_fleet else None


class SimOrder:
    """SIM-ORDER."""

    def __init__(self) -> None:
        self._last: dict[str, _OfARequest] = {}
        self._first: set[str] = set()
        self._handed_over: set[str] = set()

    def by_kind(self) -> Monitor:
        """Stages of one request follow each other in time."""
        return {
            RequestArrived: self._arrives,
            Rendered: self._goes_on,
            LegSent: self._goes_on,
            Admitted: self._admitted,
            KvTransferred: self._handed,
            FirstToken: self._first_token,
            RequestFinished: self._finished,
            RequestFailed: self._failed,
        }

    def _arrives(self, event: RequestArrived, _engine: EngineState) -> None:
        self._last[event.request_id] = event

    def _goes_on(self, event: _OfARequest, _engine: EngineState) -> list[Finding] | None:
        """None for a request that nobody saw arrive."""
        request_id = event.request_id
        before = self._last.get(request_id)
        if before is None:
            return None
        self._last[request_id] = event
        if event.time_ms >= before.time_ms:
            return []
        was = f"{type(before).__name__} was at {before.time_ms} ms"
        return [Broken(f"{type(event).__name__} of {request_id} at {event.time_ms} ms, and {was}", (request_id,))]

    def _handed(self, event: KvTransferred, engine: EngineState) -> list[Finding] | None:
        found = self._goes_on(event, engine)
        if found is not None:
            self._handed_over.add(event.request_id)
        return found

    def _first_token(self, event: FirstToken, engine: EngineState) -> list[Finding] | None:
        found = self._goes_on(event, engine)
        if found is not None:
            self._first.add(event.request_id)
        return found

    def _admitted(self, event: Admitted, engine: EngineState) -> list[Finding] | None:
        found = self._goes_on(event, engine)
        if found is not None and event.num_remote_tokens and event.request_id not in self._handed_over:
            told = f"{event.request_id} is admitted with a KV cache that has not arrived"
            found.append(Broken(told, (event.request_id,)))
        return found

    def _finished(self, event: RequestFinished, engine: EngineState) -> list[Finding] | None:
        found = self._goes_on(event, engine)
        if found is not None:
            found.append(_ENDS)
            if event.output_tokens and event.request_id not in self._first:
                found.append(Broken(f"{event.request_id} ends before its first token", (event.request_id,)))
            self._forget(event.request_id)
        return found

    def _failed(self, event: RequestFailed, engine: EngineState) -> list[Finding] | None:
        found = self._goes_on(event, engine)
        if found is not None:
            self._forget(event.request_id)
        return found

    def _forget(self, request_id: str) -> None:
        del self._last[request_id]
        self._first.discard(request_id)
        self._handed_over.discard(request_id)


class SimProg:
    """SIM-PROG."""

    def __init__(self) -> None:
        self._at_once: dict[str, int] = {}

    def by_kind(self) -> Monitor:
        """Everybody is moved by something until the end, and steps take time."""
        return {StepFinished: self._step, RequestFinished: _finished, RequestFailed: _failed}

    def _step(self, event: StepFinished, _engine: EngineState) -> tuple[Finding, ...] | None:
        if event.duration_ms > 0:
            self._at_once.pop(event.instance, None)
            return None
        count = self._at_once[event.instance] = self._at_once.get(event.instance, 0) + 1
        if count != MOST_STEPS_AT_ONCE:
            return None
        return (Broken(f"{event.instance} takes {count} steps, and it is still {event.time_ms} ms"),)


def _finished(_event: RequestFinished, _engine: EngineState) -> tuple[Finding, ...]:
    """SIM-PROG of a request that ends well."""
    return _AN_END


def _failed(event: RequestFailed, _engine: EngineState) -> tuple[Finding, ...] | None:
    """SIM-PROG of a request that does not."""
    if not event.stuck:
        return None
    return (Broken(f"{event.request_id} waits for nothing: {event.reason}", (event.request_id,)),)


PROPERTIES = (
    Property(
        "SIM-BOOKS",
        "Injected = completed + failed + refused + queued + running at every moment, each request in exactly one of them.",
        "A rate is computed over requests that are counted twice, or not at all.",
        "fleet",
        sometimes="a request ends",
        monitor=lambda: SimBooks().by_kind(),
    ),
    Property(
        "SIM-CAP",
        "No instance and no link does more than it can: tokens and requests of a step, items of an encoder run, one of them at a "
        "time; bytes within bandwidth times time.",
        "A simulated instance does the work of two.",
        "fleet",
        sometimes="a step is told by an engine that told its settings",
        monitor=lambda: SimCap().by_kind(),
    ),
    Property(
        "SIM-ORDER",
        "Stages of a request follow each other in time, nothing is used before it is there, the first token comes before the end.",
        "Latencies come out negative or too small.",
        "fleet",
        sometimes="a request goes all the way",
        monitor=lambda: SimOrder().by_kind(),
    ),
    Property(
        "SIM-LITTLE",
        "Mean number in an engine, as it tells it, times time = sum of stays of its requests, exact over each busy period.",
        "A queue that loses or invents waiting.",
        "fleet",
        sometimes="an engine becomes empty",
        evidence=("Dynamo AISimulate",),
        monitor=lambda: SimLittle().by_kind(),
    ),
    Property(
        "SIM-FAIR",
        "Round robin spreads to within one per pool; ties among idle equals are not always the same one.",
        "One of two instances does all the work, and every figure of the fleet is that of half of it.",
        "fleet",
        sometimes="a pool of several has been gone round, or has been idle when a leg came",
        evidence=("BLIS",),
        monitor=lambda: SimFair().by_kind(),
    ),
    Property(
        "SIM-PROG",
        "Whatever is unfinished is moved by something until it ends, and no engine steps on without time passing.",
        "A run that never ends, or ends with requests that nobody counts.",
        "fleet",
        sometimes="a request ends well",
        evidence=("Dynamo", "BLIS"),
        monitor=lambda: SimProg().by_kind(),
    ),
    Property(
        "SIM-QUEUE",
        "Limiting cases agree with queueing theory, and at low load with the steady-state estimate.",
        "A simulator that is wrong where the answer is known is not right where it is not.",
        "fleet",
        stands_as=(
            "tests/unit/fleet/test_fleet_queueing.py::test_the_recursion_is_m_d_1",
            "tests/unit/fleet/test_fleet_queueing.py::test_a_front_end_is_a_queue_of_so_many_servers",
            "tests/unit/fleet/test_fleet_queueing.py::test_an_engine_that_takes_one_request_at_a_time_is_a_queue_and_busy_as_often_as_it_should_be",
            "tests/unit/fleet/test_fleet_queueing.py::test_at_low_load_a_request_takes_what_its_stages_take",
            "tests/unit/fleet/test_fleet_queueing.py::test_a_place_too_many_is_noticed",
        ),
    ),
    Property(
        "SIM-MONO",
        "For one request alone in the system, slowing a stage never makes it faster, and cost never falls as tokens or bytes grow.",
        "A faster machine looks slower.",
        "fleet",
        stands_as=(
            "tests/property/test_simulator_laws.py::test_nothing_gets_faster_by_slowing_a_stage_for_one_request_alone",
            "tests/property/test_cost_monotone.py::test_table_steps_never_fall_however_noisy_the_table",
            "tests/property/test_simulator_planted_bugs.py::test_a_cost_that_falls",
        ),
    ),
    Property(
        "SIM-SAME",
        "Same seed, same bytes out: any hash seed, every router, every number of processes.",
        "Two people who run the same file disagree.",
        "fleet",
        stands_as=(
            "tests/property/test_simulator_laws.py::test_the_same_file_gives_the_same_bytes",
            "tests/property/test_simulator_laws.py::test_the_hash_seed_of_the_process_changes_nothing",
            "tests/cli/test_cli_compare.py::test_processes_change_nothing",
            "tests/property/test_simulator_planted_bugs.py::test_a_router_that_throws_dice",
        ),
    ),
    Property(
        "SIM-BLIND",
        "Routing and admission cannot read what they could not know: a request's true output length, fresh state of an instance.",
        "A policy looks better than it can be.",
        "fleet",
        stands_as=(
            "tests/property/test_simulator_laws.py::test_nobody_knows_how_long_an_answer_will_be",
            "tests/property/test_simulator_planted_bugs.py::test_routers_read_nothing_of_an_instance_but_what_was_sent_to_it",
            "tests/property/test_simulator_planted_bugs.py::test_a_router_that_reads_the_end_of_the_answer",
        ),
    ),
)
