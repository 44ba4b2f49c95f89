"""What figures are made of while a run goes on: requests in flight, and sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

Stage = Literal["front end", "encode", "queue", "prefill", "hand-over", "decode"]
STAGES: Sequence[Stage] = get_args(Stage)
"""Where a request can be on the way to its first token, in order; the way to an engine counts as its queue."""

COUNTS = (
    *("injected", "completed", "failed", "refused", "aborted", "aborted_waiting", "retries", "preemptions", "steps"),
    *("prompt_tokens", "prefix_hit_tokens", "output_tokens", "wasted_prompt_tokens", "wasted_output_tokens"),
    *("media_items", "processor_cache_hits", "encoded_items", "ec_loads", "ec_bytes", "kv_bytes"),
    *("broadcast_bytes", "broadcast_bytes_unstripped"),
)
"""Sums of `Totals` that a run is told as they were counted."""


class Flight:
    """A request under way.

    Attributes:
        arrived_ms: When it came.
        is_warm_up: Whether it stands in the books alone.
        first_ms: When its client had its first token; negative before.
        first_leg: The first call for it to an engine, since it was lost there, if it was.
        computed_tokens: Prompt tokens that engines took on for it.
        spent_ms: By stage, on the way to the first token.
    """

    __slots__ = ("arrived_ms", "computed_tokens", "first_leg", "first_ms", "is_warm_up", "since_ms", "spent_ms")

    def __init__(self, arrived_ms: float, *, is_warm_up: bool) -> None:
        self.arrived_ms = self.since_ms = arrived_ms
        self.is_warm_up = is_warm_up
        self.first_ms = -1.0
        self.first_leg = ""
        self.computed_tokens = 0
        self.spent_ms: dict[Stage, float] = {}

    def ends(self, stage: Stage, now_ms: float) -> None:
        """A stage on the way to the first token ends here, and the next begins."""
        if self.first_ms < 0:
            self.spent_ms[stage] = self.spent_ms.get(stage, 0.0) + now_ms - self.since_ms
            self.since_ms = now_ms


class Totals:
    """Sums of a run; `RunMetrics` has them under the same names, and says what they are.

    Attributes:
        legs: Body bytes by leg.
        by_payload: Body bytes by choice of payload.
        failures: Requests by reason.
        busy_ms: By instance.
        spent_ms: By stage, of requests that got all their tokens.
    """

    def __init__(self) -> None:
        self.injected = self.completed = self.failed = self.refused = self.aborted = self.aborted_waiting = 0
        self.retries = self.preemptions = self.steps = 0
        self.prompt_tokens = self.prefix_hit_tokens = self.output_tokens = 0
        self.wasted_prompt_tokens = self.wasted_output_tokens = 0
        self.media_items = self.processor_cache_hits = self.encoded_items = 0
        self.ec_loads = self.ec_bytes = self.kv_bytes = 0
        self.broadcast_bytes = self.broadcast_bytes_unstripped = 0
        self.broadcast_ms = 0.0
        self.legs: Counter[str] = Counter()
        self.by_payload: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.busy_ms: dict[str, float] = {}
        self.spent_ms: dict[Stage, float] = {}
