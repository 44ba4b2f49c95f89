"""What releases do otherwise with hashes and keys; a part of `core.releases.DEVIATIONS`.

Found by running 0.30.0, 0.31.0 and 0.32.0; what older releases do was read in their source.
"""

from __future__ import annotations

from epdsim.core import media_hash, prefix_index
from epdsim.core.kv import block_keys
from epdsim.core.releases.deviation import FIRST, Deviation

IDENTITY_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        media_hash.GIVEN_ID,
        FIRST,
        33,
        media_hash.name_alone,
        "what a client calls an item stands for its content (vLLM issue 55547)",
    ),
    Deviation(
        media_hash.STREAM,
        FIRST,
        30,
        media_hash.joined,
        "names and values of options are hashed one after the other with nothing between them (vLLM PR 54283)",
    ),
    Deviation(
        media_hash.STREAM,
        31,
        33,
        media_hash.without_types,
        "values of options are hashed without their type; no public report known",
    ),
    Deviation(
        block_keys.FILLED_LATER,
        FIRST,
        30,
        block_keys.last_item,
        "a block that output or a session's input fills is looked at for the last item alone (vLLM PR 49448)",
    ),
    Deviation(
        prefix_index.PUBLISHED,
        31,
        33,
        prefix_index.adapter_by_name,
        "block keys depend on an adapter's path, and events of stored blocks tell its name alone; no public report known",
    ),
)
