"""One engine that serves text: the steps of `Stepper` over a `TextScheduler`."""

from __future__ import annotations

from math import inf

from epdsim.cost.lm import decode_stepper
from epdsim.fleet.config import EnginePool
from epdsim.fleet.express.clock import NORMAL, STEP_END, Clock
from epdsim.fleet.express.flight import Flight
from epdsim.fleet.express.scheduler import TextScheduler
from epdsim.fleet.express.telling import Teller
from epdsim.fleet.grid import TICKS_PER_MS, WHOLE, on_grid
from epdsim.fleet.step_cost import BroadcastCost

WAKE, END = 0, 1
"""Kinds of what an engine sets the clock for: it begins to step; a step, or the last one of a stride, ends."""


class TextEngine:
    """An engine of a pool.

    Args:
        name: For routers' callers and events.
        place: Among all engines, for steps that end at one instant.
        pool: What all engines of its pool have in common.
        broadcast: Weighs its plans.
        clock: Of the run.
        tell: Makes its events.

    Attributes:
        name: As given.
        outstanding: Requests sent to it and not answered, for routers.
        ended: Requests that have ended, for whoever waits for them.
    """

    def __init__(
        self, name: str, place: int, pool: EnginePool, broadcast: BroadcastCost, clock: Clock, tell: Teller
    ) -> None:
        self.name, self.outstanding = name, 0
        self.ended: list[Flight] = []
        self._lm, self._decode_steps_ms, self._broadcast = pool.lm, decode_stepper(pool.lm), broadcast
        self._place, self._clock, self._tell = STEP_END + place, clock, tell
        self._scheduler = TextScheduler(pool.scheduler, tell)
        # What is under way: a step, or a stride with a duration for each step, and the number under which the clock is set.
        self._is_idle, self._number = True, 0
        self._started_ms, self._num_steps, self._num_requests = 0.0, 0, 0
        self._stride: list[float] = []
        self._plan = broadcast.plain(0)
        self._scheduler.skip()

    def submit(self, flight: Flight) -> None:
        """Queue a request."""
        self._scheduler.add(flight)
        if self._is_idle:
            self._is_idle = False
            self._clock.set(self._clock.now_ms, NORMAL, WAKE, self)
        elif self._stride:
            self._cut_stride()

    def advance(self) -> None:
        """Begin what comes next: steps that decide nothing, a step, or idleness."""
        scheduler = self._scheduler
        num_steady = scheduler.steady_steps()
        if num_steady > 1:
            self._begin_stride(num_steady)
            return
        while not (num_requests := scheduler.schedule()):
            has_preempted = self._tell.planned(scheduler.step)
            scheduler.skip()
            if not has_preempted:
                self._is_idle = True
                return
        self._begin_step(num_requests)

    def end(self, number: int) -> None:
        """What the clock was set for by that number is over, unless it was cut."""
        if number != self._number:
            return
        if self._stride:
            self._end_stride()
        else:
            self._end_step()
        self.advance()

    def _begin_step(self, num_requests: int) -> None:
        self._tell.planned(self._scheduler.step)
        nbytes = self._scheduler.take_size()
        self._plan = self._broadcast.text(nbytes) if nbytes else self._broadcast.plain(num_requests)
        self._begin(1, num_requests, on_grid(self._plan.total_ms + self._lm.step_ms(self._scheduler.load)))

    def _begin_stride(self, num_steps: int) -> None:
        """Steps that decide nothing, in one wait."""
        scheduler, count = self._scheduler, self._scheduler.num_decoding
        self._plan = self._broadcast.plain(count)
        self._stride = self._decode_steps_ms(count, scheduler.num_known, num_steps)
        self._begin(num_steps, count, self._steps_until(inf)[1])

    def _steps_until(self, elapsed_ms: float) -> tuple[int, float]:
        """The steps of the stride up to the first that ends then or later: how many, and how long they take."""
        past, fixed_ms = elapsed_ms * TICKS_PER_MS, self._plan.total_ms
        num_steps, ticks = 0, 0.0
        for step_ms in self._stride:
            ticks += (fixed_ms + step_ms) * TICKS_PER_MS + WHOLE - WHOLE
            num_steps += 1
            if ticks >= past:
                break
        return num_steps, ticks / TICKS_PER_MS

    def _begin(self, num_steps: int, num_requests: int, duration_ms: float) -> None:
        now_ms = self._clock.now_ms
        self._started_ms, self._num_steps, self._num_requests = now_ms, num_steps, num_requests
        self._number = self._clock.set(now_ms + duration_ms, self._place, END, self)

    def _cut_stride(self) -> None:
        """A request has arrived: the stride ends with the step that is under way."""
        num_steps, duration_ms = self._steps_until(self._clock.now_ms - self._started_ms)
        if num_steps < self._num_steps:
            self._num_steps = num_steps
            self._number = self._clock.set(self._started_ms + duration_ms, self._place, END, self)

    def _end_stride(self) -> None:
        self._stride = []
        step, num_steps = self._scheduler.step, self._num_steps
        ended = self._scheduler.take_steps(num_steps)
        self._tell_steps(step, num_steps * self._num_requests)
        self._finish(ended)

    def _end_step(self) -> None:
        step, num_tokens = self._scheduler.step, self._scheduler.num_tokens
        completed, ended = self._scheduler.update()
        self._tell_steps(step, num_tokens)
        for flight in completed:
            if not flight.has_token:
                flight.has_token = True
                self._tell.first_token(flight.request_id)
        self._finish(ended)

    def _tell_steps(self, step: int, num_tokens: int) -> None:
        duration_ms, state = self._clock.now_ms - self._started_ms, self._scheduler.state
        self._tell.stepped(step, num_tokens, self._num_requests, state, duration_ms, self._plan, self._num_steps)

    def _finish(self, ended: list[Flight]) -> None:
        for flight in ended:
            self._tell.finished(flight.request_id, flight.end_tokens - flight.num_prompt)
        self.ended += ended
