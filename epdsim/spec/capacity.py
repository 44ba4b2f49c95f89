"""SIM-CAP: what an instance or a link can do at most."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import EncodeRunFinished, EngineStarted, Event, FleetStarted, LinkUsed, StepFinished
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Reached

_STEP = Reached("a step")
_STEPS = (_STEP,)


class SimCap:
    """SIM-CAP."""

    def __init__(self) -> None:
        self._busy_until_ms: dict[str, float] = {}
        self._max_batch_items = 0
        self._busy: dict[str, list[tuple[float, float, int]]] = {}
        """Of each fair line, the spans without a pause so far and the bytes of each."""

    def by_kind(self) -> Monitor:
        """Within the budgets, and one at a time."""
        return {
            FleetStarted: self._fleet,
            EngineStarted: self._begins,
            StepFinished: self._step,
            EncodeRunFinished: self._encoder_run,
            LinkUsed: self._transfer,
        }

    def _fleet(self, event: FleetStarted, _engine: EngineState) -> None:
        self._max_batch_items = event.max_batch_items

    def _begins(self, event: EngineStarted, _engine: EngineState) -> None:
        self._busy_until_ms[event.instance] = event.time_ms

    def _step(self, event: StepFinished, engine: EngineState) -> tuple[Finding, ...] | None:
        if engine.started is None:
            return None
        told = self._beyond(event, engine.started)
        return (_STEP, Broken(told)) if told else _STEPS

    def _encoder_run(self, event: EncodeRunFinished, _engine: EngineState) -> Iterator[Finding]:
        if self._max_batch_items and event.num_items > self._max_batch_items:
            yield Broken(f"{event.instance} encodes {event.num_items} items at once, most {self._max_batch_items}")
        if told := self._overlap(event, event.duration_ms, "an encoder run"):
            yield Broken(told)

    def _beyond(self, event: StepFinished, started: EngineStarted) -> str:
        budget = event.num_steps * started.max_num_batched_tokens
        if event.num_tokens > budget:
            return f"{event.instance} computes {event.num_tokens} tokens in {event.num_steps} steps, budget {budget}"
        if event.num_requests > started.max_num_seqs:
            return f"{event.instance} has {event.num_requests} requests in a step, most {started.max_num_seqs}"
        return self._overlap(event, event.duration_ms, "a step")

    def _transfer(self, event: LinkUsed, _engine: EngineState) -> Iterator[Finding]:
        most = event.bytes_per_s * (event.ends_ms - event.begins_ms) / 1e3
        # Ends stand on the grid of time, a nanosecond apart.
        if event.sent_bytes > most + event.bytes_per_s * 2e-9 + 1:
            yield Broken(f"{event.instance} moves {event.sent_bytes} bytes in a time for {most:.0f}")
        if event.is_fair:
            yield from self._together(event)
        if event.is_alone:
            if event.begins_ms < self._busy_until_ms.get(event.instance, 0.0):
                yield Broken(
                    f"{event.instance} begins a transfer at {event.begins_ms} ms while it is busy with another one"
                )
            self._busy_until_ms[event.instance] = event.ends_ms

    def _together(self, event: LinkUsed) -> Iterator[Finding]:
        """Transfers side by side, told in order of their ends, move no more than the line can in all the time that they take."""
        spans = self._busy.setdefault(event.instance, [])
        begins_ms, nbytes = event.begins_ms, event.sent_bytes
        while spans and spans[-1][1] > event.begins_ms:
            begun_ms, _, others = spans.pop()
            begins_ms, nbytes = min(begins_ms, begun_ms), nbytes + others
        spans.append((begins_ms, event.ends_ms, nbytes))
        most = event.bytes_per_s * (event.ends_ms - begins_ms) / 1e3
        if nbytes > most * (1 + 1e-9) + event.bytes_per_s * 2e-9 + 1:
            yield Broken(f"{event.instance} moves {nbytes} bytes side by side in a time for {most:.0f}")

    def _overlap(self, event: Event, duration_ms: float, what: str) -> str:
        began_ms, until_ms = event.time_ms - duration_ms, self._busy_until_ms.get(event.instance, 0.0)
        self._busy_until_ms[event.instance] = event.time_ms
        # Durations of encoder runs are told as they were computed, not on the grid of time.
        return (
            f"{event.instance} begins {what} at {began_ms} ms while it is busy with another one"
            if began_ms < until_ms - 1e-6
            else ""
        )
