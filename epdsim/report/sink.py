"""Figures of a run, taken from its events alone.

Warm-up requests fill caches: they stand in the books, and in no other figure. What is no single request's (steps, broadcasts, loads
of embeddings) counts from the arrival of the first request that is measured.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

from epdsim.core.request import WARM_UP
from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    EncodeRunFinished,
    Event,
    FirstToken,
    KvTransferred,
    LegRecovered,
    LegRetried,
    LegSent,
    Preempted,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.report.books import COUNTS, STAGES, Flight, Stage, Totals
from epdsim.report.metrics import Distribution, RunMetrics


class MetricsSink:
    """Takes events and keeps figures; memory grows with requests in flight and one float per latency."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._totals = Totals()
        self._ttft_ms, self._tpot_ms, self._e2e_ms = array("d"), array("d"), array("d")
        self._render_ms, self._encode_run_ms, self._recovery_ms = array("d"), array("d"), array("d")
        self._start_ms = self._end_ms = -1.0
        self._takers: Mapping[type[Event], Callable[[Any], None]] = {
            RequestArrived: self._arrived,
            Rendered: self._rendered,
            LegSent: self._leg,
            EncodeFinished: self._encoded,
            EncodeRunFinished: self._encoder_ran,
            EcLoaded: self._ec_loaded,
            Admitted: self._admitted,
            Preempted: self._preempted,
            StepFinished: self._step,
            KvTransferred: self._kv,
            FirstToken: self._first_token,
            RequestFinished: self._finished,
            RequestFailed: self._failed,
            LegRetried: self._retried,
            LegRecovered: self._recovered,
        }

    def __call__(self, event: Event) -> None:
        """Take one event."""
        taker = self._takers.get(event.__class__)
        if taker is not None:
            self._end_ms = event.time_ms
            taker(event)
        elif not event.is_detail:  # who listens to details must not make a run longer
            self._end_ms = event.time_ms

    def _arrived(self, event: RequestArrived) -> None:
        time_ms, is_warm_up = event.time_ms, event.slo_class == WARM_UP
        self._totals.injected += 1
        if self._start_ms < 0 and not is_warm_up:
            self._start_ms = time_ms
        self._flights[event.request_id] = Flight(time_ms, is_warm_up=is_warm_up)

    def _measures(self, flight: Flight | None) -> bool:
        """Whether what befalls a request counts."""
        return flight is None or not flight.is_warm_up

    def _rendered(self, event: Rendered) -> None:
        flight = self._flights.get(event.request_id)
        if flight is not None:
            flight.ends("front end", event.time_ms)
        if self._measures(flight):
            self._totals.media_items += len(event.mm_hashes)
            self._totals.processor_cache_hits += event.cache_hits
            self._render_ms.append(event.duration_ms)

    def _leg(self, event: LegSent) -> None:
        flight, leg = self._flights.get(event.request_id), event.leg
        if flight is not None and leg != "encode":
            stage: Stage = "encode"
            if flight.first_leg:
                # Where decode is called first, its wait for the call of prefill is one for blocks.
                stage = "prefill" if leg == "decode" else "queue" if flight.first_leg == "decode" else "encode"
            flight.first_leg = flight.first_leg or leg
            flight.ends(stage, event.time_ms)
        if self._measures(flight):
            self._totals.legs[leg] += event.body_bytes
            if event.body_bytes_by_payload:
                self._totals.by_payload.update(event.body_bytes_by_payload)

    def _encoded(self, event: EncodeFinished) -> None:
        if self._measures(self._flights.get(event.request_id)):
            self._totals.encoded_items += len(event.mm_hashes)

    def _encoder_ran(self, event: EncodeRunFinished) -> None:
        if self._start_ms >= 0:
            self._encode_run_ms.append(event.duration_ms)
            self._is_busy(event.instance, event.duration_ms)

    def _is_busy(self, instance: str, duration_ms: float) -> None:
        busy_ms = self._totals.busy_ms
        busy_ms[instance] = busy_ms.get(instance, 0.0) + duration_ms

    def _ec_loaded(self, event: EcLoaded) -> None:
        if self._start_ms >= 0:
            self._totals.ec_loads += 1
            self._totals.ec_bytes += event.embedding_bytes

    def _admitted(self, event: Admitted) -> None:
        flight, is_remote = self._flights.get(event.request_id), event.num_remote_tokens > 0
        if flight is not None:
            flight.ends("hand-over" if is_remote else "queue", event.time_ms)
        if is_remote or event.resumed or not self._measures(flight):
            return
        num_prompt, num_computed = event.num_prompt_tokens, event.num_computed_tokens
        self._totals.prompt_tokens += num_prompt
        self._totals.prefix_hit_tokens += num_computed
        if flight is not None:
            flight.computed_tokens += num_prompt - num_computed

    def _preempted(self, event: Preempted) -> None:
        flight = self._flights.get(event.request_id)
        if flight is not None:
            flight.ends("prefill", event.time_ms)
        if self._measures(flight):
            self._totals.preemptions += 1

    def _step(self, event: StepFinished) -> None:
        if self._start_ms < 0:
            return
        totals = self._totals
        totals.steps += event.num_steps
        totals.broadcast_bytes += event.broadcast_bytes
        totals.broadcast_bytes_unstripped += event.broadcast_bytes_unstripped
        totals.broadcast_ms += event.broadcast_ms
        self._is_busy(event.instance, event.duration_ms)
        if event.encode_ms:
            self._encode_run_ms.append(event.encode_ms)

    def _kv(self, event: KvTransferred) -> None:
        flight = self._flights.get(event.request_id)
        if flight is not None and flight.first_leg == "decode":
            flight.ends("prefill", event.time_ms)
        if self._measures(flight):
            self._totals.kv_bytes += event.kv_bytes

    def _first_token(self, event: FirstToken) -> None:
        flight = self._flights[event.request_id]
        if flight.first_ms < 0:
            flight.ends("decode" if "hand-over" in flight.spent_ms else "prefill", event.time_ms)
            flight.first_ms = event.time_ms

    def _finished(self, event: RequestFinished) -> None:
        flight, totals = self._flights.pop(event.request_id), self._totals
        totals.completed += 1
        if flight.is_warm_up:
            return
        time_ms, num_tokens = event.time_ms, event.output_tokens
        totals.output_tokens += num_tokens
        self._ttft_ms.append(flight.first_ms - flight.arrived_ms)
        for stage, spent_ms in flight.spent_ms.items():
            totals.spent_ms[stage] = totals.spent_ms.get(stage, 0.0) + spent_ms
        self._e2e_ms.append(time_ms - flight.arrived_ms)
        if num_tokens > 1:
            self._tpot_ms.append((time_ms - flight.first_ms) / (num_tokens - 1))

    def _failed(self, event: RequestFailed) -> None:
        flight, totals = self._flights.pop(event.request_id), self._totals
        if event.aborted:
            totals.aborted += 1
            totals.aborted_waiting += flight.first_ms < 0
            totals.wasted_prompt_tokens += flight.computed_tokens
            totals.wasted_output_tokens += event.output_tokens
            return
        if event.refused:
            totals.refused += 1
        else:
            totals.failed += 1
        totals.failures[event.reason] += 1

    def _retried(self, event: LegRetried) -> None:
        flight = self._flights.get(event.request_id)
        if flight is not None and event.leg == "generate":
            flight.first_leg = ""
        if self._measures(flight):
            self._totals.retries += 1

    def _recovered(self, event: LegRecovered) -> None:
        if self._measures(self._flights.get(event.request_id)):
            self._recovery_ms.append(event.time_ms - event.lost_ms)

    def result(self) -> RunMetrics:
        """The figures so far."""
        totals = self._totals
        return RunMetrics(
            unfinished=len(self._flights),
            duration_ms=self._end_ms - self._start_ms if self._start_ms >= 0 else 0.0,
            ttft_ms=Distribution.of(self._ttft_ms),
            ttft_by_stage_ms={
                stage: totals.spent_ms[stage] / len(self._ttft_ms) for stage in STAGES if totals.spent_ms.get(stage)
            },
            tpot_ms=Distribution.of(self._tpot_ms),
            e2e_ms=Distribution.of(self._e2e_ms),
            render_ms=Distribution.of(self._render_ms),
            encode_run_ms=Distribution.of(self._encode_run_ms),
            leg_bytes=dict(sorted(totals.legs.items())),
            prefill_bytes_by_payload=dict(sorted(totals.by_payload.items())),
            broadcast_ms=totals.broadcast_ms,
            busy_ms=dict(sorted(totals.busy_ms.items())),
            failures=dict(sorted(totals.failures.items())),
            **{name: getattr(totals, name) for name in COUNTS},
            recovery_ms=Distribution.of(self._recovery_ms),
        )
