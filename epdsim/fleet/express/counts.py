"""What a run in counts amounts to."""

from __future__ import annotations

from array import array


class RunCounts:
    """Sums and latencies of a run all of whose requests got all their tokens.

    Attributes:
        injected: Requests that arrived.
        start_ms: First arrival.
        end_ms: Last token.
        ttft_ms: Arrival to first token, of each request, in order of its last token.
        tpot_ms: Time per output token after the first, of each that has two, in that order.
        e2e_ms: Arrival to last token, in that order.
        render_ms: Work of the front end on each request, in order of its end.
        front_end_ms: In the front end, in all.
        queue_ms: From there to admission, in all.
        prefill_ms: From there to first tokens, in all.
        prompt_tokens: Tokens of all prompts.
        prefix_hit_tokens: Those of them that prefix caches covered.
        output_tokens: Tokens generated.
        leg_bytes: Bodies to engines.
        steps: Steps of all engines.
        broadcast_bytes: Plans of their steps.
        broadcast_ms: Time that steps spent on serialising and delivering these.
        busy_ms: By engine, time spent in steps; only of those that took one.
    """

    __slots__ = (
        "broadcast_bytes",
        "broadcast_ms",
        "busy_ms",
        "e2e_ms",
        "end_ms",
        "front_end_ms",
        "injected",
        "leg_bytes",
        "output_tokens",
        "prefill_ms",
        "prefix_hit_tokens",
        "prompt_tokens",
        "queue_ms",
        "render_ms",
        "start_ms",
        "steps",
        "tpot_ms",
        "ttft_ms",
    )

    def __init__(self) -> None:
        self.injected = 0
        self.start_ms = self.end_ms = 0.0
        self.ttft_ms: array[float] = array("d")
        self.tpot_ms: array[float] = array("d")
        self.e2e_ms: array[float] = array("d")
        self.render_ms: array[float] = array("d")
        self.front_end_ms = self.queue_ms = self.prefill_ms = 0.0
        self.prompt_tokens = self.prefix_hit_tokens = self.output_tokens = 0
        self.leg_bytes = self.steps = self.broadcast_bytes = 0
        self.broadcast_ms = 0.0
        self.busy_ms: dict[str, float] = {}
