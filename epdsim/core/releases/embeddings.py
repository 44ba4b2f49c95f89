"""What releases do otherwise with embeddings that come from elsewhere: reads, pushes, host copies."""

from __future__ import annotations

from epdsim.core.ec import pull, push, read, serve
from epdsim.core.releases.deviation import FIRST, Deviation
from epdsim.core.scheduler import rules

EMBEDDING_DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        rules.EC_RESET,
        FIRST,
        33,
        rules.leave_copies,
        "a reset of the encoder cache is not told to the EC connector (read in 0.32.0, taken for all)",
    ),
    Deviation(
        serve.ANNOUNCED,
        FIRST,
        33,
        serve.is_taken,
        "a producer announces what is still being copied; consumers are told to ask again (read in 0.32.0, taken for all)",
    ),
    Deviation(
        read.LEASE,
        FIRST,
        33,
        read.any_time,
        "a consumer does not know when its lease ends, and uses what it read later (read in 0.32.0, taken for all)",
    ),
    Deviation(
        read.LOST,
        FIRST,
        33,
        read.forget_reads,
        "reads under way are forgotten with a lost producer, and their room is never used again (read in 0.32.0, taken for all)",
    ),
    Deviation(
        pull.WAIT,
        FIRST,
        33,
        pull.until_seen,
        "the wait for an item starts afresh whenever it is seen, so that items that push each other out are waited "
        "for without an end (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        push.LOCAL,
        FIRST,
        33,
        push.never_here,
        "a consumer that is pushed to encodes nothing, with or without payload: without a push its requests wait and fail (read in "
        "0.32.0, taken for all)",
    ),
    Deviation(
        push.ROOM,
        FIRST,
        33,
        push.ahead_of_its_room,
        "what was pushed is loaded before its request is admitted, whether the encoder cache has room or not, and stays with the "
        "workers when the request ends before it is (read in 0.32.0, taken for all)",
    ),
    Deviation(
        pull.COUNTED,
        FIRST,
        33,
        pull.keep_none,
        "with role both a step may save over the host copy that it is to load, so that workers have neither copy nor run (seen in "
        "0.32.0, taken for all)",
    ),
    Deviation(
        pull.TOGETHER,
        FIRST,
        33,
        pull.each_alone,
        "items of a request that do not fit into the host copies together are read one after the other, each over another one "
        "(seen in 0.32.0, taken for all)",
    ),
    Deviation(
        pull.FIRST,
        FIRST,
        33,
        pull.keep_for_nobody,
        "reads push out the host copies that others wait with, and those of their own request (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        pull.NUMBER,
        FIRST,
        33,
        pull.any_number,
        "a host copy serves any item of its identifier (read in 0.32.0, taken for all)",
    ),
)
"""Rows of EC connectors."""
