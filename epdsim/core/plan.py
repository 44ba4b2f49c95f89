"""The plan of one step: what a scheduler decides and what workers are told (vLLM's `SchedulerOutput`).

A plan costs no time. The fleet says how long it takes, the broadcast what it weighs, a replay whether it equals a recorded one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import NamedTuple

from epdsim.core.items import MediaFeature
from epdsim.core.records import record

NO_UPDATES: Mapping[int, MediaFeature] = MappingProxyType({})
"""Nothing to send late."""


@record
class NewRequestData:
    """An admission, and with a v2-style runner also a resume.

    Attributes:
        num_computed_tokens: Prefix hit plus remote tokens at admission.
        block_ids: The block table so far.
        mm_features: As broadcast: stripped by the rule in force.
        num_prompt_tokens: Length of the prompt that goes along (with its outputs so far on a v2 resume).
        num_cached_tokens: The part of `num_computed_tokens` that the engine's own prefix cache held.
        num_known_features: Leading items of the request that the workers hold and `mm_features` leaves out: a streaming session
            that goes on.
        cross_block_ids: Blocks for cross attention (encoder-decoder models).
    """

    request_id: str
    num_computed_tokens: int
    block_ids: Sequence[int]
    mm_features: Sequence[MediaFeature]
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_known_features: int = 0
    cross_block_ids: Sequence[int] = ()


class CachedRequestData(NamedTuple):
    """The difference for a request that the workers already know; a tuple, since a step has one for each request that goes on.

    Attributes:
        new_block_ids: Blocks added in this step, None when none were; the whole table when resumed.
        resumed: Whether it comes back from a preemption (v1-style runners only).
        mm_updates: Fields that the workers lack, by item: sent late, or again, by strips other than the one at admission.
        cross_block_ids: Blocks for cross attention, when resumed.
    """

    request_id: str
    num_computed_tokens: int
    new_block_ids: Sequence[int] | None
    resumed: bool = False
    mm_updates: Mapping[int, MediaFeature] = NO_UPDATES
    cross_block_ids: Sequence[int] = ()


class KvLoad(NamedTuple):
    """KV cache that workers load from outside.

    Attributes:
        request_id: Whose it is.
        block_ids: Blocks to fill, in order of the prompt.
        start: First token of the first block.
        end: One past the last token that comes.
        is_async: Whether it is loaded between steps, and its end reported; else it is there before the step reads it.
    """

    request_id: str
    block_ids: Sequence[int]
    start: int
    end: int
    is_async: bool


@record
class TransferReport:
    """What workers say about KV transfers with the output of a step.

    Attributes:
        received: Ids whose asynchronous load is over, failed ones among them.
        sent: Ids that ended before, whose blocks are not needed any more.
        invalid_blocks: Blocks that could not be loaded: of a load within the step just run, or of an asynchronous one, at the
            latest with its end.
        failed: Ids whose asynchronous load failed as a whole; they are in `received` too, now or later.
    """

    received: Sequence[str] = ()
    sent: Sequence[str] = ()
    invalid_blocks: Collection[int] = ()
    failed: Sequence[str] = ()


@record
class StepPlan:
    """One step.

    Attributes:
        step: Number of the step, from 0.
        num_scheduled_tokens: Tokens to compute by request, in scheduling order: running first, then admissions.
        scheduled_encoder_inputs: Item indices to encode, by request.
        ec_loads: Identifiers to load over the EC connector in this step.
        ec_saves: Identifiers to save over the EC connector once they are encoded in this step, where the connector chooses them.
        samples: Ids that reach the end of their known tokens, so that the step yields a token of each, and its accepted drafts; in
            scheduling order.
        num_scheduled_spec_tokens: Draft tokens among the tokens to compute, by request; those of an admission nobody proposed.
        kv_loads: Loads of KV cache that begin with this step.
        kv_sends: Ids that ended since the last step and whose blocks are held until they are reported as sent.
        preempted: Sorted ids, as reported to the workers in this step.
        finished: Sorted ids that ended since the last step.
        free_encoder_mm_hashes: Identifiers that workers must drop from their encoder cache.
    """

    step: int
    num_scheduled_tokens: Mapping[str, int]
    scheduled_encoder_inputs: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    new: Sequence[NewRequestData] = ()
    cached: Sequence[CachedRequestData] = ()
    preempted: Sequence[str] = ()
    finished: Sequence[str] = ()
    free_encoder_mm_hashes: Sequence[str] = ()
    ec_loads: Sequence[str] = ()
    ec_saves: Sequence[str] = ()
    samples: Sequence[str] = ()
    num_scheduled_spec_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    kv_loads: Sequence[KvLoad] = ()
    kv_sends: Sequence[str] = ()

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens of the step over all requests."""
        return sum(self.num_scheduled_tokens.values())
