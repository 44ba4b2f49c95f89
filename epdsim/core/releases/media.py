"""What releases do otherwise with payloads, stripped or cached; a part of `core.releases.DEVIATIONS`.

Rows of caches from 0.32 on were found by running that release; what older ones do was read in their source.
"""

from __future__ import annotations

from epdsim.core import strip
from epdsim.core.caches import mm_cache, mm_mirror, shm_cache
from epdsim.core.releases.deviation import FIRST, Deviation

MEDIA_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        strip.ADMITTED,
        FIRST,
        28,
        strip.send_everything,
        "covered items are broadcast in full: the strip is first in 0.29 (vLLM PR 52041), with XD-RoPE (vLLM PR 53456)",
    ),
    Deviation(
        strip.KEPT,
        29,
        33,
        strip.keep_subset,
        "under M-RoPE a covered item without keep-on-CPU fields is sent as an item without fields, not as nothing",
    ),
    Deviation(
        strip.RESUMED,
        29,
        33,
        strip.never_resends,
        "a v1-style worker keeps the stripped features of the admission and gets nothing when the request resumes, so that it is "
        "asked to encode without a payload; v2-style ones are told of a new request",
    ),
    Deviation(
        mm_cache.MISS,
        FIRST,
        27,
        mm_cache.miss_ends_engine,
        "a hash that the engine cannot resolve ends the thread that takes requests in (vLLM PR 46747)",
    ),
    Deviation(
        mm_cache.FRESH,
        FIRST,
        30,
        mm_cache.cached_wins,
        "an item held under the key wins over a payload that comes (vLLM PR 57833)",
    ),
    Deviation(
        mm_cache.OVERSIZE,
        FIRST,
        28,
        mm_cache.refuse_large,
        "an item larger than the processor cache fails its request at the front end",
    ),
    Deviation(
        mm_cache.ORDER,
        FIRST,
        33,
        mm_cache.modality_order,
        "the front end's cache takes a request's items modality by modality (seen in 0.32.0, read in 0.25 to 0.31, taken for 0.33)",
    ),
    Deviation(
        mm_cache.PUSHED_OUT,
        FIRST,
        33,
        mm_cache.loses_pushed_out,
        "an item found at look-up may be gone when it is used, which fails the request at the front end (seen in 0.32.0, read in "
        "0.25 to 0.31, taken for 0.33)",
    ),
    Deviation(
        mm_mirror.MOVES,
        FIRST,
        33,
        mm_mirror.moves_at_render,
        "the front end's cache takes a request when it is rendered, so that order and refusals make the sides differ (vLLM PRs "
        "46747 and 51897)",
    ),
    Deviation(
        mm_mirror.RESET,
        FIRST,
        33,
        mm_mirror.resets_later,
        "the engine's side is reset by another thread than the one that takes requests in (read in 0.32.0, taken for all)",
    ),
    Deviation(
        shm_cache.ACKNOWLEDGE,
        FIRST,
        33,
        shm_cache.acknowledged_on_read,
        "readers acknowledge an address whenever it is broadcast, and on a v2 runner it is again after a preemption (seen in "
        "0.32.0, taken for all)",
    ),
    Deviation(
        shm_cache.GIVE_BACK,
        FIRST,
        33,
        shm_cache.keeps_reference,
        "an address that no reader hears of keeps its item for ever (vLLM PR 51897, closed unmerged)",
    ),
    Deviation(
        shm_cache.TOUCH,
        FIRST,
        31,
        shm_cache.touch_counts,
        "a look-up counts as a reference (read in 0.25 to 0.31)",
    ),
    Deviation(
        shm_cache.SHM_RESET,
        FIRST,
        31,
        shm_cache.reset_restarts,
        "a reset numbers items from 0 again, so that an address given out before may name another item (read in 0.25 to 0.31)",
    ),
    Deviation(
        shm_cache.SHM_RESET,
        32,
        33,
        shm_cache.reset_drops,
        "a reset forgets items whose addresses are under way",
    ),
)
"""Rows of `core.strip`, `core.caches.mm_cache`, `core.caches.mm_mirror` and `core.caches.shm_cache`."""
