"""A digest of a scheduler's state, for search and for comparing runs."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

from epdsim.core.kv.block_keys import RANGE, BlockKeyTable
from epdsim.core.scheduler.engine import EngineState
from epdsim.core.strip import payload_kind


def fingerprint(engine: EngineState) -> str:
    """Digest of all that decides what a scheduler does next.

    Blocks are named by their place in the pool's queue and in the block tables, their content by what it is and not by its number,
    and steps are not counted, so states that differ in such names only have one digest.
    """
    blocks = _Names()
    content = _Contents(engine.table)
    pool = engine.pool
    queue = [(blocks[block], content[pool.key_of(block)]) for block in pool.free_queue()]
    states: list[tuple[object, ...]] = []
    transfers = engine.transfers
    withheld = () if transfers is None else transfers.withheld.values()
    queued = dict.fromkeys((*engine.running, *engine.waiting, *engine.holding, *engine.requests.values(), *withheld))
    for state in queued:
        table = [(blocks[block], content[pool.key_of(block)], pool.references(block)) for block in state.blocks]
        counters = (state.num_tokens, state.num_computed, state.num_placeholders, state.num_in_flight, state.num_stale)
        cross = [blocks[block] for block in state.cross_blocks]
        drafts = (state.num_drafts, state.is_prefill)
        kv = (state.num_loads, state.num_unready, state.was_preempted)
        rest = (state.num_published, kv, [payload_kind(one.data) for one in state.sent], state.outputs)
        session = (state.end_tokens, state.drops_stale, state.num_told, state.urgency, state.updates)
        states.append((state.request_id, state.status.value, counters, drafts, table, cross, rest, session))
    served = [blocks[block] for block in pool.serving()]
    ec = None if engine.ec is None else engine.ec.fingerprint()
    lengths = (len(engine.running), len(engine.waiting), len(engine.holding), engine.pause_state.value)
    pending: tuple[object, ...] = (lengths, engine.finished, engine.preempted, ec, list(engine.refused))
    if transfers is not None:
        deferred = [blocks[block] for block in transfers.deferred_blocks()]
        settled = [transfers.is_settled(state) for state in engine.requests.values()]
        pending = (*pending, transfers.fingerprint(), deferred, settled)
    text = repr((queue, states, served, pending, engine.encoder_cache.fingerprint()))
    return blake2b(text.encode(), digest_size=16).hexdigest()


class _Contents:
    """A digest of the whole prefix that each key stands for."""

    __slots__ = ("_digests",)

    def __init__(self, table: BlockKeyTable) -> None:
        self._digests = {0: ""}
        # Parents have smaller numbers than what continues them.
        for number, parent, content in sorted(table.chains(), key=lambda chain: chain[0]):
            self._digests[number] = blake2b(f"{self[parent]}{content!r}".encode(), digest_size=8).hexdigest()

    def __getitem__(self, number: int) -> str:
        """The digest of the chain that the number belongs to, and how many blocks further its last run goes on."""
        further = number % RANGE
        return f"{self._digests[number - further]}+{further}" if number else ""


class _Names:
    """Small numbers in order of first appearance."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def __getitem__(self, thing: Hashable) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))
