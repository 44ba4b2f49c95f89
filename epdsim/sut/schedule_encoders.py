"""Random workloads made over: for an encoder-decoder model, and for an engine that only encodes.

The workload is drawn as for any other engine. What is drawn here comes after it, so that no other mode changes.
"""

from __future__ import annotations

import random

import msgspec

from epdsim.core.releases.dialects import named
from epdsim.core.scheduler.rules import ENCODER_TOKEN
from epdsim.sut.schedule_drafts import drafter_in
from epdsim.sut.schedule_records import RecordedConfig, RecordedItem, RecordedRequest, RecordedWorkload

replace = msgspec.structs.replace


def as_encoder_decoder(workload: RecordedWorkload, rng: random.Random) -> RecordedWorkload:
    """The workload for a model that reads its items through cross attention.

    Prompts keep their tokens, those of placeholders as any other; the first one or two items move beside the prompt. The pool grows
    by the blocks that the largest request needs for them, and a step can take the longest request as a whole.
    """
    config, largest = workload.config, workload.config.max_tokens_per_mm_item
    if rng.random() < 0.5:  # the cache binds before the budget does
        config = replace(config, encoder_cache_size=largest, max_num_encoder_input_tokens=3 * largest)
    room = max(largest, min(config.encoder_cache_size, config.max_num_encoder_input_tokens))
    requests = [replace(request, mm_features=_beside(request.mm_features, room, rng)) for request in workload.requests]
    most_embeds = max(sum(item.length for item in request.mm_features) for request in requests)
    longest = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    if rng.random() < 0.3:  # outputs are cut
        longest = rng.randint(1 + max(len(request.prompt_token_ids) for request in requests), longest)
    config = replace(
        config,
        is_encoder_decoder=True,
        num_gpu_blocks=config.num_gpu_blocks + -(-most_embeds // config.block_size),
        max_model_len=longest,
        max_num_batched_tokens=max(longest, config.max_num_seqs, largest, 1 + config.num_speculative_tokens)
        + drafter_in(config).num_slots
        + rng.randint(0, 8),
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        disable_chunked_mm_input=True,
        long_prefill_token_threshold=0,
    )
    return replace(workload, config=config, requests=requests)


def as_encoder_only(workload: RecordedWorkload, rng: random.Random) -> RecordedWorkload:
    """The workload for an engine that only encodes: no KV cache, and clients that mostly ask for one token, as they should.

    A release that makes up tokens dies of them under async scheduling (vLLM PR 50275): there it is off.
    """
    makes_up_tokens = named(f"vllm-{workload.config.vllm}")[ENCODER_TOKEN]()
    config: RecordedConfig = replace(
        workload.config,
        mm_encoder_only=True,
        ec_role="producer",
        enable_prefix_caching=False,
        async_scheduling=workload.config.async_scheduling and not makes_up_tokens,
    )
    requests: list[RecordedRequest] = [
        replace(request, max_tokens=1) if rng.random() < 0.7 else request for request in workload.requests
    ]
    return replace(workload, config=config, requests=requests)


def _beside(items: list[RecordedItem], room: int, rng: random.Random) -> list[RecordedItem]:
    """The first items, as many as fit in a step, as sounds at offset 0."""
    found: list[RecordedItem] = []
    for item in items[: rng.choice([1, 1, 1, 2])]:
        length = item.length if item.is_embed is None else max(1, sum(item.is_embed))
        if length + sum(one.length for one in found) <= room:
            found.append(replace(item, modality="audio", offset=0, length=length, is_embed=None))
    return found
