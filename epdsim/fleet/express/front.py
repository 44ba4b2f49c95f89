"""The way of text requests to engines and back: what `Orchestrator` does of them, and who sends the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop
from itertools import islice

from epdsim.core.kv.block_keys import is_output
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.events import LegSent, Rendered, RequestArrived, Sink
from epdsim.fleet.composer import text_prefill_bytes
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.express.clock import NORMAL, Clock
from epdsim.fleet.express.engine import WAKE, TextEngine
from epdsim.fleet.express.flight import Flight
from epdsim.fleet.express.telling import Teller
from epdsim.fleet.grid import on_grid
from epdsim.fleet.routing import router
from epdsim.fleet.step_cost import BroadcastCost
from epdsim.fleet.telling import NAME, fleet_started
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.workload import Workload

ARRIVE, BEGIN, TURN, RENDERED, SUBMIT, DONE = range(2, 8)
"""Kinds of what happens beside `WAKE` and `END`: the next request arrives; one that is there begins; it is a request's turn to be
rendered; it is; it reaches its engine; its user has its last token."""

STAGE, PREFIX = "aggregated", "engine"
"""Leg and names of engines that generate what they prefill."""


def can_carry(config: FleetConfig, requests: Iterable[WorkloadRequest]) -> bool:
    """Whether a run is one for a `TextFleet`.

    It is where engines generate what they prefill, schedule first come first served by the ideal rules, and nothing goes wrong; and
    where all requests are text whose clients stay, none goes on with the output of another, which is published late here, and none
    is refused, or would be for an id that is in use. What can be read but once is not looked at, thus no; nor is a workload that
    says as much of itself, thus yes.

    Args:
        config: The fleet.
        requests: Read up to the first that speaks against it.
    """
    if not _is_plain(config):
        return False
    most = _most_tokens(config.prefill.scheduler)
    if isinstance(requests, Workload) and requests.most_text_tokens is not None and requests.most_text_tokens <= most:
        return True
    if iter(requests) is requests:
        return False
    ids: set[str] = set()
    for count, request in enumerate(requests, 1):
        ids.add(request.request_id)
        if len(ids) < count or not _is_carried(request, most):
            return False
    return True


def _is_plain(config: FleetConfig) -> bool:
    is_alone = config.decode is None and config.encode is None and not config.prefill.lockstep
    is_sound = config.faults is None and config.dialect is IDEAL and config.orchestrator in {"per_item", "batched"}
    return (
        is_alone and is_sound and config.costs.sharing.body == "none" and _schedules_plainly(config.prefill.scheduler)
    )


def _schedules_plainly(config: SchedulerConfig) -> bool:
    is_plain = config.policy == "fcfs" and not config.async_scheduling and config.speculative_method == "none"
    connects = config.ec_role != "none" or config.kv_role != "none"
    is_special = config.mm_encoder_only or config.is_encoder_decoder or config.mamba_block_aligned_split
    # Plans are weighed anew when a request needs a block (`PlanSize.widen`).
    is_aligned = 128 % config.block_size == 0
    return is_plain and is_aligned and not (connects or is_special or config.long_prefill_token_threshold)


def _most_tokens(config: SchedulerConfig) -> int:
    """Tokens of prompt and output that a request may have; the last one is never computed."""
    most = min(config.max_model_len, (config.num_gpu_blocks - 1) * config.block_size + 1)
    return most if config.enable_chunked_prefill else min(most, config.max_num_batched_tokens + 1)


def _is_carried(request: WorkloadRequest, most: int) -> bool:
    num_prompt = 0
    for part in request.parts:
        if not isinstance(part, TokenRun) or is_output(part.content):
            return False
        num_prompt += part.length
    stays = not (request.patience_ms or request.leaves_ms)
    return stays and num_prompt > 0 and 0 < request.output_tokens <= most - num_prompt


class TextFleet:
    """Front end, orchestrator, engines and users of one run.

    Args:
        config: The fleet.
        emit: Takes every event.
        wants_detail: Make the events of detail too; steps that decide nothing are told by the stride.
    """

    def __init__(self, config: FleetConfig, emit: Sink, *, wants_detail: bool) -> None:
        self._clock, self._emit = Clock(), emit
        self._source: Iterator[WorkloadRequest] = iter(())
        self._is_open, self._keeps_arrivals = True, False
        if wants_detail:
            emit(fleet_started(config, PREFIX))
        pool, costs = config.prefill, config.costs
        broadcast = BroadcastCost(costs.broadcast, pool.tp)
        self._engines: list[TextEngine] = []
        for place, name in enumerate(f"{PREFIX}-{index}" for index in range(pool.count)):
            tell = Teller(name, pool.scheduler, self._clock, emit, wants_detail=wants_detail)
            self._engines.append(TextEngine(name, place, pool, broadcast, self._clock, tell))
        self._router = router(config.router_of(pool), self._now_ms, config.router_stale_ms)
        self._render, self._hop_ms, self._link = costs.render, costs.hop_ms, costs.body_link
        self._num_free_desks = config.render.count
        self._at_desk: deque[Flight] = deque()
        self._render_ms: dict[int, float] = {}

    def _now_ms(self) -> float:
        return self._clock.now_ms

    def run(self, source: Iterable[WorkloadRequest], concurrency: int | None, *, keeps_arrivals: bool) -> float:
        """Serve requests until each has its last token, see `simulate`; when that is."""
        self._source, self._is_open, self._keeps_arrivals = iter(source), concurrency is None, keeps_arrivals
        if concurrency is None:
            self._arrive([])
        else:
            for first in list(islice(self._source, concurrency)):
                self._send(first)
        clock, due = self._clock, self._clock.due
        while due:
            clock.now_ms, _, number, kind, what = heappop(due)
            if isinstance(what, TextEngine):
                self._step(what, kind, number)
            elif isinstance(what, Flight):
                self._move(what, kind)
            else:
                assert isinstance(what, WorkloadRequest)
                if kind == ARRIVE:
                    self._arrive([what])
                else:
                    self._begin(what)
        return clock.now_ms

    def _step(self, engine: TextEngine, kind: int, number: int) -> None:
        """What an engine has set the clock for."""
        if kind == WAKE:
            engine.advance()
        else:
            engine.end(number)
        if engine.ended:
            self._take_ended(engine)

    def _take_ended(self, engine: TextEngine) -> None:
        engine.outstanding -= len(engine.ended)
        if not self._is_open:
            for flight in engine.ended:
                self._clock.set(self._clock.now_ms, NORMAL, DONE, flight)
        engine.ended.clear()

    def _move(self, flight: Flight, kind: int) -> None:
        """The next thing that happens to a request."""
        if kind == RENDERED:
            self._leave_desk(flight)
        elif kind == SUBMIT:
            flight.engine.submit(flight)
        elif kind == TURN:
            self._take_desk(flight)
        else:
            for source in self._source:
                self._send(source)
                break

    def _arrive(self, here: list[WorkloadRequest]) -> None:
        """Requests are here; the clock is set for the first that comes later before they begin."""
        clock = self._clock
        for source in self._source:
            at_ms = on_grid(source.arrival_ms)
            if at_ms > clock.now_ms:
                clock.set(at_ms, NORMAL, ARRIVE, source)
                break
            here.append(source)
        for source in here:
            self._begin(source)

    def _send(self, source: WorkloadRequest) -> None:
        """A user of a closed loop has a request."""
        at_ms = on_grid(source.arrival_ms)
        if self._keeps_arrivals and at_ms > self._clock.now_ms:
            self._clock.set(at_ms, NORMAL, BEGIN, source)
        else:
            self._begin(source)

    def _begin(self, source: WorkloadRequest) -> None:
        """A request comes in."""
        request_id, num_output = source.request_id, source.output_tokens
        self._emit(RequestArrived(self._clock.now_ms, NAME, request_id, num_output, source.slo_class))
        flight = Flight(request_id, RunPrompt(source.text), num_output)
        if self._num_free_desks:
            self._num_free_desks -= 1
            self._take_desk(flight)
        else:
            self._at_desk.append(flight)

    def _take_desk(self, flight: Flight) -> None:
        """A request is rendered from now on."""
        render_ms = self._render_ms.get(flight.num_prompt)
        if render_ms is None:
            render_ms = self._render_ms[flight.num_prompt] = self._render.render_ms((), flight.num_prompt)
        self._clock.set(self._clock.now_ms + on_grid(render_ms), NORMAL, RENDERED, flight)

    def _leave_desk(self, flight: Flight) -> None:
        """A request is rendered, and goes to an engine."""
        clock, request_id, num_prompt = self._clock, flight.request_id, flight.num_prompt
        if self._at_desk:
            clock.set(clock.now_ms, NORMAL, TURN, self._at_desk.popleft())
        else:
            self._num_free_desks += 1
        self._emit(Rendered(clock.now_ms, "render", request_id, num_prompt, 0, [], 0, 0, self._render_ms[num_prompt]))
        flight.engine = engine = self._router(self._engines, flight.prompt)
        engine.outstanding += 1
        nbytes = text_prefill_bytes(request_id, num_prompt, hands_over=False)
        self._emit(LegSent(clock.now_ms, NAME, request_id, STAGE, engine.name, nbytes, "none"))
        way_ms = self._hop_ms + self._link.transfer_ms(nbytes)
        clock.set(clock.now_ms + on_grid(way_ms), NORMAL, SUBMIT, flight)
