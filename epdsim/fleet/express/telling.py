"""What an engine in counts tells: the events of `Stepper`, in its order."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.events import Admitted, FirstToken, Preempted, RequestFinished, Sink, StepFinished, StepPlanned
from epdsim.fleet.express.clock import Clock
from epdsim.fleet.express.flight import Flight
from epdsim.fleet.step_cost import StepBroadcast
from epdsim.fleet.telling import engine_started, request_queued, stride_planned


class Teller:
    """Makes the events of one engine.

    Args:
        name: Of the engine.
        config: Its settings.
        clock: Of the run.
        emit: Takes events.
        wants_detail: Whether those of detail are made too.

    Attributes:
        wants_detail: As given.
    """

    def __init__(self, name: str, config: SchedulerConfig, clock: Clock, emit: Sink, *, wants_detail: bool) -> None:
        self.wants_detail = wants_detail
        self._name, self._clock, self._emit, self._is_v2 = name, clock, emit, config.model_runner == "v2"
        self._preempted: list[str] = []
        self._admitted: list[Admitted] = []
        self._resumed: list[Admitted] = []
        # Of the plan that is made, by request: tokens, and of those that go on computed tokens and further blocks.
        self._scheduled: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._blocks: dict[str, Sequence[int]] = {}
        self._ended: list[str] = []
        if wants_detail:
            emit(engine_started(clock.now_ms, name, config, f"simulated {IDEAL.name}"))

    def queued(self, request: Request) -> None:
        """A request is added."""
        if self.wants_detail:
            self._emit(request_queued(self._clock.now_ms, self._name, request, 0))

    def preempted(self, request_id: str) -> None:
        """The plan that is made preempts a request."""
        self._preempted.append(request_id)

    def decodes(self, request_id: str, num_computed: int, blocks: Sequence[int]) -> None:
        """It goes on with a request that decodes; told with detail."""
        self._scheduled[request_id], self._computed[request_id] = 1, num_computed
        if blocks:
            self._blocks[request_id] = blocks

    def goes_on(self, flight: Flight, count: int, num_computed: int, blocks: Sequence[int]) -> None:
        """It goes on with what a request knows."""
        if self.wants_detail:
            self.decodes(flight.request_id, num_computed, blocks)
            self._scheduled[flight.request_id] = count

    def admitted(self, flight: Flight, count: int, num_computed: int) -> None:
        """It admits a request."""
        request_id, is_resumed = flight.request_id, flight.was_preempted
        payloads: Sequence[str] = () if is_resumed and not self._is_v2 else []
        now_ms, blocks = self._clock.now_ms, list(flight.blocks)
        event = Admitted(
            now_ms, self._name, request_id, flight.num_prompt, num_computed, 0, payloads, is_resumed, blocks
        )
        (self._resumed if is_resumed else self._admitted).append(event)
        if self.wants_detail:
            self._scheduled[request_id] = count

    def planned(self, number: int) -> bool:
        """The plan is made: tell its decisions; whether it preempts somebody."""
        emit, now_ms, name, preempted = self._emit, self._clock.now_ms, self._name, sorted(self._preempted)
        for request_id in preempted:
            emit(Preempted(now_ms, name, request_id))
        for event in self._admitted:
            emit(event)
        for event in self._resumed:
            emit(event)
        if self.wants_detail and (self._scheduled or preempted or self._ended):
            self._tell_plan(number)
        self._preempted.clear()
        self._admitted.clear()
        self._resumed.clear()
        self._ended.clear()
        return bool(preempted)

    def _tell_plan(self, number: int) -> None:
        resumed = {one.request_id: one.num_computed_tokens for one in self._resumed}
        computed = {one.request_id: one.num_computed_tokens for one in self._admitted}
        computed |= {**resumed, **self._computed} if self._is_v2 else {**self._computed, **resumed}
        finished = sorted(self._ended)
        event = StepPlanned(
            self._clock.now_ms, self._name, number, self._scheduled, {}, (), [], computed, self._blocks, finished
        )
        self._scheduled, self._computed, self._blocks = {}, {}, {}
        self._emit(event)

    def stride(
        self,
        number: int,
        num_steps: int,
        before: Mapping[str, tuple[int, int, Sequence[int]]],
        ended: Container[str],
    ) -> None:
        """Steps are over that decided nothing, see `stride_planned`; told with detail."""
        finished = sorted(self._ended)
        self._ended.clear()
        self._emit(stride_planned(self._clock.now_ms, self._name, number, num_steps, before, finished, ended))

    def stepped(
        self,
        number: int,
        num_tokens: int,
        num_requests: int,
        states: tuple[int, int, int],
        duration_ms: float,
        plan: StepBroadcast,
        num_steps: int,
    ) -> None:
        """Steps are over.

        Args:
            number: Of the first.
            num_tokens: Computed, in all.
            num_requests: In each.
            states: Requests that run now, those that wait, and free blocks.
            duration_ms: Of all.
            plan: Of each.
            num_steps: How many.
        """
        num_running, num_waiting, num_free = states
        self._emit(
            StepFinished(
                self._clock.now_ms,
                self._name,
                number,
                num_tokens,
                num_requests,
                num_running,
                num_waiting,
                duration_ms,
                num_steps * plan.grid_ms,
                0.0,
                num_steps * plan.sent_bytes,
                num_steps * plan.unstripped_bytes,
                num_free,
                num_steps,
            )
        )

    def first_token(self, request_id: str) -> None:
        """A client sees its first token."""
        self._emit(FirstToken(self._clock.now_ms, self._name, request_id))

    def finished(self, request_id: str, num_tokens: int) -> None:
        """A request has its last token, of so many."""
        if self.wants_detail:
            self._ended.append(request_id)
        self._emit(RequestFinished(self._clock.now_ms, self._name, request_id, num_tokens))
