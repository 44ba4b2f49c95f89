"""Figures of a run, taken from its events alone.

Warm-up requests fill caches: they stand in the books, and in no other figure. What is no single request's (steps, broadcasts, loads
of embeddings) counts from the arrival of the first request that is measured.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Distribution:
    """A latency over the requests that completed (the population is named beside it)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """The distribution of some values, None of nothing."""
        if not len(values):
            return None
        data = np.asarray(values, dtype=np.float64)
        ordered = np.sort(data)
        p50, p90, p99 = (_quantile(ordered, share) for share in (0.5, 0.9, 0.99))
        return cls(len(data), float(data.mean()), p50, p90, p99, float(ordered[-1]))


def _quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Between two neighbours as by `numpy.quantile`, to the last bit; that one brings masked arrays, a twentieth of a short run."""
    place = (len(ordered) - 1) * share
    below = int(place)
    low, high, weight = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)]), place - below
    return high - (high - low) * (1.0 - weight) if weight >= 0.5 else low + (high - low) * weight


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What a run amounts to. Latencies are over completed requests that are not warm-up.

    Attributes:
        injected: Requests that arrived; equals completed + failed + refused + aborted + unfinished.
        completed: Requests that got all their tokens.
        failed: Requests that were lost after work was done for them.
        refused: Requests that were turned away before.
        unfinished: Requests under way when the run ended.
        duration_ms: From the first measured arrival to the last event that is no detail.
        ttft_ms: Arrival to first token.
        ttft_by_stage_ms: The mean of it by stage (`STAGES`), whose sum it is.
        tpot_ms: Time per output token after the first, per request with at least two.
        e2e_ms: Arrival to last token.
        prompt_tokens: Prompt tokens of first admissions to an engine that computes them itself.
        prefix_hit_tokens: Those of them that the prefix cache covered.
        output_tokens: Tokens generated.
        render_ms: Time that a front-end process worked on a request.
        encode_run_ms: Time of one run of an encoder, in an encode instance or in a step of an engine.
        media_items: Pictures, clips and sounds of all prompts.
        processor_cache_hits: Those of them whose processing the front end's cache spared.
        encoded_items: Items that encode instances encoded.
        ec_loads: Embeddings that engines pulled out of the store.
        ec_bytes: Their bytes.
        kv_bytes: KV cache handed from prefill to decode.
        preemptions: Running requests that lost their blocks.
        steps: Steps of all engines.
        leg_bytes: Body bytes by leg.
        prefill_bytes_by_payload: Body bytes of the legs to the engine that computes the prompt, under each choice of payload.
        broadcast_bytes: What went to the tensor-parallel ranks, each unique tensor of a step once.
        broadcast_bytes_unstripped: The same without strip.
        broadcast_ms: Time that steps spent on serialising and delivering their plans.
        busy_ms: Time that each engine spent in steps, and each encode instance in encoder runs.
        failures: Requests that were failed or refused, by reason.
        retries: Legs that were lost with their instance and sent again.
        recovery_ms: From the loss of an instance to the next token, or the embedding, of what was lost with it.
        aborted: Requests whose clients left before their last token.
        aborted_waiting: Those of them without a first token.
        wasted_prompt_tokens: Prompt tokens that engines took on for requests whose clients left, less those in the prefix cache.
        wasted_output_tokens: Tokens generated for them.
        goodput_req_s: Highest offered rate that meets a service level; no run has it, a search over runs puts it in.
    """

    injected: int
    completed: int
    failed: int
    refused: int
    unfinished: int
    duration_ms: float
    ttft_ms: Distribution | None
    ttft_by_stage_ms: Mapping[str, float]
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    render_ms: Distribution | None
    encode_run_ms: Distribution | None
    output_tokens: int
    prompt_tokens: int
    prefix_hit_tokens: int
    media_items: int
    processor_cache_hits: int
    encoded_items: int
    ec_loads: int
    ec_bytes: int
    kv_bytes: int
    preemptions: int
    steps: int
    leg_bytes: Mapping[str, int]
    prefill_bytes_by_payload: Mapping[str, int]
    broadcast_bytes: int
    broadcast_bytes_unstripped: int
    broadcast_ms: float
    busy_ms: Mapping[str, float]
    failures: Mapping[str, int]
    retries: int = 0
    recovery_ms: Distribution | None = None
    aborted: int = 0
    aborted_waiting: int = 0
    wasted_prompt_tokens: int = 0
    wasted_output_tokens: int = 0
    goodput_req_s: float | None = None

    @property
    def unserved(self) -> int:
        """Requests whose clients got nothing, or not all that they waited for."""
        return self.failed + self.refused + self.unfinished + self.aborted_waiting

    @property
    def request_throughput_per_s(self) -> float:
        """Completed and measured requests per second of the run."""
        measured = self.e2e_ms.count if self.e2e_ms else 0
        return 1000.0 * measured / self.duration_ms if self.duration_ms > 0 else 0.0

    @property
    def token_throughput_per_s(self) -> float:
        """Output tokens per second of the run."""
        return 1000.0 * self.output_tokens / self.duration_ms if self.duration_ms > 0 else 0.0

    @property
    def prefix_hit_rate(self) -> float:
        """Share of prompt tokens that the prefix cache covered."""
        return self.prefix_hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


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
