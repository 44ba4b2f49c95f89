"""How long a planned step takes, and what it weighs: the plan read once for each cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from epdsim.core.plan import CachedRequestData, StepPlan
from epdsim.core.records import record
from epdsim.core.request import Request
from epdsim.cost.broadcast import BroadcastProfile, broadcast_ms
from epdsim.cost.lm import StepLoad, chunk_pairs
from epdsim.fleet.grid import on_grid
from epdsim.payload.message import MessageSize, message_size


def step_load(plan: StepPlan, requests: Mapping[str, Request]) -> StepLoad:
    """The language model's work: chunks of prompts, and decodes with their contexts.

    A request computes its prompt as long as its computed tokens are below the prompt's length (or, resumed, its known tokens: more
    than one scheduled); after that every scheduled token is a decode.
    """
    prefill_tokens = pairs = decode_requests = decode_context = 0
    scheduled = plan.num_scheduled_tokens
    for group in (plan.new, plan.cached):
        for data in group:
            count, computed = scheduled.get(data.request_id, 0), data.num_computed_tokens
            if count == 1 and computed >= requests[data.request_id].prompt.num_tokens:
                decode_requests += 1
                decode_context += computed + 1
            elif count:
                prefill_tokens += count
                pairs += chunk_pairs(computed, count)
    return StepLoad(prefill_tokens, pairs, decode_requests, decode_context)


@record
class StepBroadcast:
    """What a plan weighs on its way to the ranks.

    Attributes:
        total_ms: From the first byte serialised to the last rank that has the plan.
        sent_bytes: The message, each unique tensor once.
        unstripped_bytes: The message of the same plan with every admitted item's full payload.
        grid_ms: `total_ms` on the grid of time.
    """

    total_ms: float
    sent_bytes: int
    unstripped_bytes: int
    grid_ms: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid_ms", on_grid(self.total_ms))


class BroadcastCost:
    """Weighs plans and says how long their delivery takes.

    Args:
        profile: The host's constants.
        readers: Tensor-parallel ranks.
    """

    def __init__(self, profile: BroadcastProfile, readers: int) -> None:
        self._profile, self._readers = profile, readers
        self._plain: dict[int, StepBroadcast] = {}
        self._of_text: dict[int, StepBroadcast] = {}

    def of(self, plan: StepPlan, requests: Mapping[str, Request]) -> StepBroadcast:
        """Of any plan; exact where media can be in it, `plain` where none are."""
        if not plan.new and not any(row.mm_updates for row in plan.cached):
            return self.plain(len(plan.num_scheduled_tokens))
        size = message_size(plan)
        if size.num_items:
            unstripped = message_size(_unstripped(plan, requests))
            return StepBroadcast(self._total_ms(size), size.total_bytes, unstripped.total_bytes)
        return self.text(size.total_bytes)

    def text(self, total_bytes: int) -> StepBroadcast:
        """Of a plan without media whose message has so many bytes."""
        found = self._of_text.get(total_bytes)
        if found is None:
            size = MessageSize(total_bytes, 0, 0, 0, 0)
            found = self._of_text[total_bytes] = StepBroadcast(self._total_ms(size), total_bytes, total_bytes)
        return found

    def plain(self, num_requests: int) -> StepBroadcast:
        """Of a plan that only goes on with requests; rows are taken as equally long, so that their number says it."""
        found = self._plain.get(num_requests)
        if found is None:
            rows = [CachedRequestData(f"request-{row:016d}", 1024, None) for row in range(num_requests)]
            size = message_size(StepPlan(1024, {row.request_id: 1 for row in rows}, cached=rows))
            found = self._plain[num_requests] = StepBroadcast(self._total_ms(size), size.total_bytes, size.total_bytes)
        return found

    def _total_ms(self, size: MessageSize) -> float:
        return broadcast_ms(size.load(self._readers), self._profile).total_ms


def _unstripped(plan: StepPlan, requests: Mapping[str, Request]) -> StepPlan:
    new = [replace(one, mm_features=requests[one.request_id].mm_features) for one in plan.new]
    return replace(plan, new=new, cached=[row._replace(mm_updates={}) for row in plan.cached])
