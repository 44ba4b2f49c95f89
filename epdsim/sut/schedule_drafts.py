"""Speculative decoding in random workloads: settings of a drafter, what it proposes, and how much of that is accepted."""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

from epdsim.core.drafters import PARALLEL_METHODS, Drafter, drafter_of
from epdsim.sut.schedule_records import RecordedConfig

_METHODS = {"drafts": ("ngram", "draft_model"), "eagle": ("eagle", "eagle", "mtp", "dflash")}


def with_drafts(rng: random.Random, traits: Collection[str], config: RecordedConfig) -> RecordedConfig:
    """Settings with what the traits `drafts`, `eagle` and `aligned` add; nothing is drawn without the first two."""
    if "aligned" in traits:
        config = msgspec.structs.replace(config, mamba_block_aligned_split=True)
    methods = next((_METHODS[trait] for trait in _METHODS if trait in traits), None)
    if methods is None:
        return config
    method, num_drafts = rng.choice(methods), rng.randint(1, 4)
    if method == "mtp" and config.enable_prefix_caching:
        num_drafts = min(num_drafts, config.block_size)
    config = msgspec.structs.replace(
        config,
        speculative_method=method,
        num_speculative_tokens=num_drafts,
        parallel_drafting=method in PARALLEL_METHODS and rng.random() < 0.3,
        disable_eagle_block_drop="eagle" in traits and rng.random() < 0.2,
    )
    drafter, threshold = drafter_in(config), config.long_prefill_token_threshold
    # What the drafter takes is added, so that the workload stays as cramped as it is, and can run.
    budget = max(config.max_num_batched_tokens, 1 + num_drafts) + drafter.num_slots
    if config.disable_chunked_mm_input or not config.enable_chunked_prefill:
        budget += drafter.num_prefill_lookahead
    blocks = config.num_gpu_blocks - (-num_spare_slots(config) // config.block_size)
    most = (config.num_gpu_blocks - 1) * config.block_size
    threshold = max(threshold, 1 + num_drafts) if threshold else 0
    model_len = rng.randint(most // 2, most) if rng.random() < 0.3 else config.max_model_len
    return msgspec.structs.replace(
        config,
        max_num_batched_tokens=budget,
        num_gpu_blocks=blocks,
        long_prefill_token_threshold=threshold,
        max_model_len=max(model_len, threshold),  # a release refuses to start with less
    )


def drafter_in(config: RecordedConfig) -> Drafter:
    """The drafter of recorded settings."""
    return drafter_of(
        config.speculative_method,
        config.num_speculative_tokens,
        parallel=config.parallel_drafting,
        drops_block=not config.disable_eagle_block_drop,
    )


def num_spare_slots(config: RecordedConfig) -> int:
    """KV slots that a request may need beyond its own tokens, for drafts and what the drafter writes."""
    return 2 * config.num_speculative_tokens + drafter_in(config).num_lookahead


def least_input(config: RecordedConfig) -> int:
    """Tokens of a session's input at least; shorter ones say nothing that `sessions.frontier` does not."""
    return 1 if config.async_scheduling else max(1, config.num_speculative_tokens)


class Drafting:
    """Who drafts and who accepts while a workload is played.

    Args:
        rng: Drawn from in the order of the questions.
        config: Settings of the workload.
    """

    def __init__(self, rng: random.Random, config: RecordedConfig) -> None:
        self._rng = rng
        self._most = config.num_speculative_tokens
        self._always_most = config.speculative_method != "ngram"

    def proposed(self) -> int:
        """Drafts that a request is offered after a step: n-grams are found or not, models mostly give what is asked."""
        if self._rng.random() < (0.9 if self._always_most else 0.3):
            return self._most
        return self._rng.randint(0, self._most)

    def accepted(self, num_drafts: int) -> int:
        """How many of the drafts that a step verified are right."""
        if not num_drafts:
            return 0
        return self._rng.choice((0, num_drafts, self._rng.randint(0, num_drafts)))
