"""What releases do otherwise with KV cache from elsewhere."""

from __future__ import annotations

from epdsim.core import strip
from epdsim.core.kv import handover
from epdsim.core.releases.deviation import FIRST, Deviation
from epdsim.core.scheduler import load_failures, loads

LOAD_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        loads.RESERVED,
        FIRST,
        33,
        loads.all_prefilling,
        "a request whose load failed counts against its own next load and may wait for ever (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        loads.EMPTY_HANDED,
        FIRST,
        33,
        loads.keeps_place,
        "it is tried where it stands, and may keep those out for ever that hold what it needs (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        load_failures.REWIND,
        FIRST,
        33,
        load_failures.rewind_first_owners,
        "only the first holder of a block computes it again, and output of steps under way counts (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        load_failures.REWOUND_ENTRIES,
        FIRST,
        33,
        load_failures.keep_entries,
        "entries of later items stay held and can keep earlier ones out for ever (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        load_failures.UNLOADED,
        FIRST,
        33,
        load_failures.hide_owned,
        "blocks that were not loaded stay findable until they are computed, or for ever (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        strip.UNCOVERED,
        29,
        33,
        strip.never_resends,
        "a running request is told as a difference without media, so that when a load fails after the strip a worker is asked to "
        "encode what it never got (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        handover.READ_IN_TIME,
        FIRST,
        33,
        handover.any_time,
        "the reading side does not look at the lease, after which the sending side gives the blocks away (read in 0.32.0, NIXL)",
    ),
)
"""Rows of the KV connector."""
