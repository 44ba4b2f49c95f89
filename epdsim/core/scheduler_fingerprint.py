"""A digest of a scheduler's state, for search and for comparing runs."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

from epdsim.core.scheduler_engine import EngineState


def fingerprint(engine: EngineState) -> str:
    """Digest of all that decides what a scheduler does next.

    Blocks are renamed by their place in the pool's queue and the block tables, keys by first appearance, and steps are not counted,
    so states that differ in such names only have one digest.
    """
    blocks = _Names()
    keys = _Names()
    pool = engine.pool
    queue = [(blocks[block], keys[pool.key_of(block)]) for block in pool.free_queue()]
    states: list[tuple[object, ...]] = []
    for state in (*engine.running, *engine.waiting):
        table = [(blocks[block], keys[pool.key_of(block)], pool.references(block)) for block in state.blocks]
        known = [keys[key] for key in state.keys.keys]
        counters = (state.num_tokens, state.num_computed, state.num_placeholders, state.num_in_flight, state.num_stale)
        states.append(
            (state.request_id, state.status.value, counters, state.num_published, state.num_remote, table, known)
        )
    rest = (len(engine.running), engine.finished, engine.preempted, list(engine.ec_loads), engine.refused)
    text = repr((queue, states, rest, engine.encoder_cache.fingerprint()))
    return blake2b(text.encode(), digest_size=16).hexdigest()


class _Names:
    """Small numbers in order of first appearance."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __getitem__(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))
