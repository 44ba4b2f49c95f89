"""The figures of a run."""

# Annotations are not left as texts here: who asks for the figures by name would evaluate each.

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from epdsim.core.records import record


@record
class Distribution:
    """A latency over the requests that completed (the population is named beside it)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
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


@record
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
