"""The way of text requests to engines, in counts: what `Orchestrator` does of them, and who sends the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import WARM_UP
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.fleet.composer import text_prefill_bytes
from epdsim.fleet.config import FleetConfig
from epdsim.fleet.express.clock import NORMAL, Clock
from epdsim.fleet.express.counts import RunCounts
from epdsim.fleet.express.engine import WAKE, DeclinedError, Flight, TextEngine
from epdsim.fleet.orchestrators import ORCHESTRATORS
from epdsim.fleet.orchestrators.per_item import PerItem
from epdsim.fleet.routing import router
from epdsim.fleet.step_cost import BroadcastCost
from epdsim.fleet.world import on_grid
from epdsim.workload.request import WorkloadRequest

ARRIVE, BEGIN, TURN, RENDERED, SUBMIT, DONE = range(2, 8)
"""Kinds of what happens beside `WAKE` and `END`: the next request arrives; one that is there begins; it is a request's turn to be
rendered; it is; it reaches its engine; its user has its last token."""


def run_express(
    config: FleetConfig,
    requests: Iterable[WorkloadRequest],
    *,
    concurrency: int | None = None,
    keeps_arrivals: bool = False,
) -> RunCounts | None:
    """Run a workload through a fleet, if counts can tell what becomes of it.

    They can where engines generate what they prefill, schedule first come first served by the ideal rules, and nothing goes wrong;
    where all requests are text and their clients stay; and where nobody is refused or preempted.

    Args:
        config: As for `simulate`.
        requests: As for it; read again by whoever runs them after this was declined.
        concurrency: As for it.
        keeps_arrivals: As for it.

    Returns:
        None where they can not, which may be noticed on the way.
    """
    if not _carries(config):
        return None
    try:
        return _Front(config, iter(requests), is_open=concurrency is None, keeps_arrivals=keeps_arrivals).run(
            concurrency or 1
        )
    except DeclinedError:
        return None


def _carries(config: FleetConfig) -> bool:
    is_plain = config.decode is None and config.encode is None and config.faults is None and config.dialect is IDEAL
    kind = ORCHESTRATORS[config.orchestrator].kind
    is_alone = config.costs.sharing.body == "none" and not config.prefill.lockstep
    return is_plain and kind is PerItem and is_alone and _schedules_plainly(config.prefill.scheduler)


def _schedules_plainly(config: SchedulerConfig) -> bool:
    is_plain = config.policy == "fcfs" and not config.async_scheduling and config.speculative_method == "none"
    connects = config.ec_role != "none" or config.kv_role != "none"
    is_special = config.mm_encoder_only or config.is_encoder_decoder or config.mamba_block_aligned_split
    # A plan is weighed by what changes when a request needs a block (`PlanSize.widen`).
    is_aligned = 128 % config.block_size == 0
    return is_plain and is_aligned and not (connects or is_special or config.long_prefill_token_threshold)


class _Front:
    """Front end, orchestrator and users.

    Args:
        config: The fleet.
        source: All requests.
        is_open: Whether they come by the clock.
        keeps_arrivals: Whether users of a closed loop wait for it.
    """

    def __init__(
        self, config: FleetConfig, source: Iterator[WorkloadRequest], *, is_open: bool, keeps_arrivals: bool
    ) -> None:
        self._clock, self._counts, self._source = Clock(), RunCounts(), source
        self._is_open, self._keeps_arrivals = is_open, keeps_arrivals
        pool, costs = config.prefill, config.costs
        broadcast = BroadcastCost(costs.broadcast, pool.tp)
        self._engines = [
            TextEngine(f"engine-{place}", place, pool, self._clock, self._counts, broadcast)
            for place in range(pool.count)
        ]
        scheduler = pool.scheduler
        self._most_tokens = min(scheduler.max_model_len, (scheduler.num_gpu_blocks - 1) * scheduler.block_size + 1)
        self._router = router(config.router_of(pool), self._now_ms, config.router_stale_ms)
        self._render, self._hop_ms, self._link = costs.render, costs.hop_ms, costs.body_link
        self._num_free_desks = config.render.count
        self._at_desk: deque[Flight] = deque()
        self._render_ms: dict[int, float] = {}

    def _now_ms(self) -> float:
        return self._clock.now_ms

    def run(self, num_users: int) -> RunCounts:
        """All requests, until each has its last token.

        Args:
            num_users: Of a closed loop.
        """
        if self._is_open:
            self._arrive([])
        else:
            for first in list(islice(self._source, num_users)):
                self._send(first)
        clock = self._clock
        while clock.is_set:
            _, _, number, kind, what = clock.take()
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
        counts = self._counts
        if len(counts.e2e_ms) < counts.injected:
            raise DeclinedError("a request waits for what cannot happen")
        counts.busy_ms = {one.name: one.busy_ms for one in self._engines if one.num_steps}
        return counts

    def _step(self, engine: TextEngine, kind: int, number: int) -> None:
        """What an engine has set the clock for."""
        if kind == WAKE:
            engine.advance()
        else:
            engine.end(number)
        if engine.ended:
            self._take_ended(engine)

    def _move(self, flight: Flight, kind: int) -> None:
        """The next thing that happens to a request."""
        if kind == RENDERED:
            self._leave_desk(flight)
        elif kind == SUBMIT:
            flight.engine.submit(flight)
        elif kind == TURN:
            self._take_desk(flight)
        else:
            self._send_next()

    def _take_ended(self, engine: TextEngine) -> None:
        for flight in engine.ended:
            engine.outstanding -= 1
            if not self._is_open:
                self._clock.set(self._clock.now_ms, NORMAL, DONE, flight)
        engine.ended.clear()

    def _arrive(self, here: list[WorkloadRequest]) -> None:
        """Requests are here; the clock is set for the next one that comes later before they begin."""
        clock = self._clock
        for source in self._source:
            at_ms = on_grid(source.arrival_ms)
            if at_ms > clock.now_ms:
                clock.set(at_ms, NORMAL, ARRIVE, source)
                break
            here.append(source)
        for source in here:
            self._begin(source)

    def _send_next(self) -> None:
        """A user of a closed loop is free."""
        for source in self._source:
            self._send(source)
            return

    def _send(self, source: WorkloadRequest) -> None:
        at_ms = on_grid(source.arrival_ms)
        if self._keeps_arrivals and at_ms > self._clock.now_ms:
            self._clock.set(at_ms, NORMAL, BEGIN, source)
        else:
            self._begin(source)

    def _begin(self, source: WorkloadRequest) -> None:
        """A request comes in."""
        runs = [part for part in source.parts if isinstance(part, TokenRun)]
        if len(runs) < len(source.parts) or source.patience_ms or source.leaves_ms or source.slo_class == WARM_UP:
            raise DeclinedError("it is no plain text request")
        prompt = RunPrompt(runs)
        num_prompt, num_output = prompt.num_tokens, source.output_tokens
        if num_prompt < 1 or num_output < 1 or num_prompt + num_output > self._most_tokens:
            raise DeclinedError("an engine refuses it")
        counts, now_ms = self._counts, self._clock.now_ms
        if not counts.injected:
            counts.start_ms = now_ms
        counts.injected += 1
        flight = Flight(source.request_id, prompt, num_output, now_ms)
        if self._num_free_desks:
            self._num_free_desks -= 1
            self._take_desk(flight)
        else:
            self._at_desk.append(flight)

    def _take_desk(self, flight: Flight) -> None:
        """A request is rendered from now on."""
        num_tokens = flight.num_prompt
        render_ms = self._render_ms.get(num_tokens)
        if render_ms is None:
            render_ms = self._render_ms[num_tokens] = self._render.render_ms((), num_tokens)
        self._counts.render_ms.append(render_ms)
        self._clock.set(self._clock.now_ms + on_grid(render_ms), NORMAL, RENDERED, flight)

    def _leave_desk(self, flight: Flight) -> None:
        """A request is rendered, and goes to an engine."""
        clock, counts = self._clock, self._counts
        if self._at_desk:
            clock.set(clock.now_ms, NORMAL, TURN, self._at_desk.popleft())
        else:
            self._num_free_desks += 1
        flight.sent_ms = clock.now_ms
        counts.front_end_ms += flight.sent_ms - flight.arrived_ms
        flight.engine = engine = self._router(self._engines, flight.prompt)
        engine.outstanding += 1
        nbytes = text_prefill_bytes(flight.request_id, flight.num_prompt, hands_over=False)
        counts.leg_bytes += nbytes
        way_ms = self._hop_ms + self._link.transfer_ms(nbytes)
        clock.set(clock.now_ms + on_grid(way_ms), NORMAL, SUBMIT, flight)
