"""Hypothesis strategies for LIVE-ADMIT: requests that need all that an engine has of something, one less or one more.

Settings are such as releases start with: the pool holds a sequence of `max_model_len`, a step holds the largest item of the model
where items must stay whole. Most requests come when nobody else is there.
"""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from epdsim.sut.cases import EngineCase
from epdsim.sut.schedule_records import RecordedConfig, RecordedItem, RecordedRequest, RecordedWorkload
from epdsim.testing.strategies import masks
from epdsim.testing.workloads import PLACEHOLDER, cramped

_APART = 80
"""Steps after which a request has ended that ends at all."""
_near = st.sampled_from([0, 0, 0, -1, 1, -2])


@st.composite
def door_cases(draw: st.DrawFn, *, drafts: bool = False, both: bool = False, release: str = "0.32.0") -> EngineCase:
    """One to three requests near the limits of an engine with a front end before it.

    Args:
        draw: Hypothesis's.
        drafts: Whether tokens may be drafted, and chunks end at blocks.
        both: Whether chunks may end at blocks also where items must stay whole, which releases refuse in their settings.
        release: vLLM's, which the settings name.
    """
    config = draw(_settings(drafts=drafts, both=both, release=release))
    requests: list[RecordedRequest] = []
    step = 0
    for number in range(draw(st.integers(1, 3))):
        requests.append(draw(_requests(number, step, config)))
        step += draw(st.sampled_from([_APART, _APART, 1]))
    return EngineCase(RecordedWorkload(config=config, requests=requests, aborts=[], steps=[], unfinished=[]))


@st.composite
def _settings(draw: st.DrawFn, *, drafts: bool, both: bool, release: str) -> RecordedConfig:
    size = draw(st.sampled_from([4, 2, 1]))
    usable = 8 // size + draw(st.integers(0, 4))
    length = usable * size - draw(st.integers(0, size - 1))
    largest = draw(st.integers(1, min(8, length - 2)))
    whole = draw(st.booleans())
    aligned = drafts and draw(st.booleans()) and (both or not whole)
    method = draw(st.sampled_from(["none", "ngram", "draft_model", "eagle", "mtp"])) if drafts else "none"
    num_drafts = draw(st.integers(1, 3)) if method != "none" else 0
    seqs = draw(st.integers(1, 2))
    least = max(seqs, largest if whole else 1, size if aligned else 1) + 3 * num_drafts * seqs
    budget = draw(st.sampled_from([least, least, least + 1, least + 5]))
    threshold = draw(st.sampled_from([0, 0, num_drafts + 1, num_drafts + 2, largest, length]))
    plain = cramped(
        release,
        "drawn-door",
        runner=draw(st.sampled_from(["v1", "v2"])),
        block_size=size,
        usable=usable,
        budget=budget,
        seqs=seqs,
        largest=largest,
        length=length,
    )
    return replace(
        plain,
        has_door=True,
        enable_prefix_caching=size >= num_drafts and draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        disable_chunked_mm_input=whole,
        scheduler_reserve_full_isl=draw(st.booleans()),
        long_prefill_token_threshold=threshold if num_drafts < threshold <= length else 0,
        # Releases give the encoder as many embeddings a step, and as much room, as a step has tokens.
        max_num_encoder_input_tokens=budget,
        encoder_cache_size=budget,
        speculative_method=method,
        num_speculative_tokens=num_drafts,
        mamba_block_aligned_split=aligned,
    )


@st.composite
def _requests(draw: st.DrawFn, number: int, step: int, config: RecordedConfig) -> RecordedRequest:
    """A request whose items are about the largest, and whose tokens about as many as a sequence may have."""
    most, largest = config.max_model_len, max(config.encoder_cache_size, config.max_tokens_per_mm_item)
    tokens: list[int] = [draw(st.integers(1, 3))] * draw(st.integers(0, 3))
    items: list[RecordedItem] = []
    for place in range(draw(st.integers(0, 2))):
        length = max(1, draw(st.sampled_from([largest, largest, config.max_tokens_per_mm_item])) + draw(_near))
        bits = draw(masks(length))
        mask = None if bits is None else [bool(bit) for bit in bits]
        name = f"image-{number}-{place}"
        items.append(RecordedItem(modality="image", identifier=name, offset=len(tokens), length=length, is_embed=mask))
        tokens += [PLACEHOLDER] * length + [2] * draw(st.integers(0, 2))
    longest = most + draw(_near) - draw(st.integers(1, 3))
    tokens += [3] * (draw(st.integers(0, max(0, longest - len(tokens)))) or int(not tokens))
    asked = draw(st.one_of(st.integers(1, 3), _near.map(lambda past: max(1, most - len(tokens) + past))))
    return RecordedRequest(
        request_id=f"r{number}",
        arrival_step=step,
        prompt_token_ids=tokens,
        max_tokens=asked,
        priority=0,
        arrival_time=float(number),
        mm_features=items,
    )
