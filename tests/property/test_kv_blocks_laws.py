"""The pool of KV blocks beside a plain one: a list for the queue, a count per block, a list of blocks per key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epdsim.core.kv.block_keys import RANGE
from epdsim.core.kv.blocks import BlockPool

KEYS = (*range(RANGE, RANGE + 5), *range(2 * RANGE, 2 * RANGE + 2), 2 * RANGE + 7)
"""Of two chains; one key stands apart from the others of its chain."""


class PlainPool:
    """The same books, as one would write them down."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.references = dict.fromkeys(range(num_blocks), 0)
        self.key_of: dict[int, int] = {}
        self.found: dict[int, list[int]] = {}

    def forget_key(self, block: int) -> None:
        key = self.key_of.pop(block, None)
        if key is not None:
            self.found[key].remove(block)
            if not self.found[key]:
                del self.found[key]

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.forget_key(block)
            self.references[block] = 1
        return taken

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.references[block]:
                self.queue.remove(block)
            self.references[block] += 1

    def release(self, table: list[int]) -> None:
        for block in table:
            self.references[block] -= 1
        ended = [block for block in table if not self.references[block]]
        for block in ended:
            if block not in self.key_of:
                self.queue.insert(0, block)
        self.queue += [block for block in reversed(ended) if block in self.key_of]

    def find_all(self, keys: Sequence[int]) -> list[int]:
        return [self.found[key][0] for key in takewhile(self.found.__contains__, keys)]

    def hide(self, block: int) -> None:
        if block in self.key_of:
            self.forget_key(block)
            if block in self.queue:
                self.queue.remove(block)
                self.queue.insert(0, block)


def seen(pool: BlockPool) -> tuple[Any, ...]:
    """All that a pool tells about itself."""
    blocks = range(1, pool.num_blocks)
    return (
        pool.free_queue(),
        pool.num_free,
        [pool.references(block) for block in blocks],
        [pool.key_of(block) for block in blocks],
        {key: pool.find_all([key]) for key in KEYS},
        [pool.find_all(KEYS[first:]) for first in range(len(KEYS))],
        [pool.find_all(KEYS[first:5]) for first in range(5)],
        sorted(pool.keys()),
        pool.serving(),
    )


def written(plain: PlainPool) -> tuple[Any, ...]:
    """The same of a plain one."""
    blocks = range(1, len(plain.references))
    return (
        plain.queue,
        len(plain.queue),
        [plain.references[block] for block in blocks],
        [plain.key_of.get(block, 0) for block in blocks],
        {key: plain.found.get(key, [])[:1] for key in KEYS},
        [plain.find_all(KEYS[first:]) for first in range(len(KEYS))],
        [plain.find_all(KEYS[first:5]) for first in range(5)],
        sorted(plain.found),
        sorted(blocks[0] for blocks in plain.found.values() if len(blocks) > 1),
    )


class PoolMachine(RuleBasedStateMachine):
    """Tables are taken, filled, found, shared and given up, and a copy stays as it was."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.pool, self.plain = BlockPool(num_blocks, enable_caching=True), PlainPool(num_blocks)
        self.tables: list[list[int]] = []
        self.findable, self.num_lost = set[tuple[int, int]](), 0
        self.copy = self.pool.clone()
        self.copied = seen(self.copy)

    @precondition(lambda self: self.plain.queue)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.plain.queue)))
        taken = self.pool.take(count)
        assert taken == self.plain.take(count)
        if taken:
            self.tables.append(taken)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        known = st.sampled_from(sorted(self.plain.found) or KEYS)
        keys = data.draw(st.lists(known | st.sampled_from(KEYS), min_size=1, unique=True))
        keys.sort()
        blocks = self.pool.find_all(keys)
        assert blocks == self.plain.find_all(keys)
        assert self.pool.num_idle(blocks) == sum(block in self.plain.queue for block in blocks)
        self.pool.hold(blocks)
        self.plain.hold(blocks)
        if blocks:
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), keeps_count=st.booleans())
    def release(self, data: st.DataObject, *, keeps_count: bool) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        has_key = [block in self.plain.key_of for block in table]
        # An owner can say how many have a key where these lead.
        knows = keeps_count and has_key == sorted(has_key, reverse=True)
        self.pool.release(table, sum(has_key) if knows else None)
        self.plain.release(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), gives_up=st.booleans())
    def publish(self, data: st.DataObject, *, gives_up: bool) -> None:
        """Fill a table's blocks; its owner may end with that, as most do."""
        table = data.draw(st.sampled_from(self.tables))
        blocks = [block for block in table if block not in self.plain.key_of]
        keys = sorted(data.draw(st.lists(st.sampled_from(KEYS), unique=True) | st.just(KEYS) | st.just(KEYS[5:])))
        del keys[len(blocks) :]
        blocks = blocks[: len(keys)]
        self.pool.publish(blocks, keys)
        for block, key in zip(blocks, keys, strict=True):
            self.plain.key_of[block] = key
            self.plain.found.setdefault(key, []).append(block)
        if gives_up:
            self.tables.remove(table)
            self.pool.release(table)
            self.plain.release(table)

    @precondition(lambda self: self.plain.key_of)
    @rule(data=st.data())
    def hide(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.plain.key_of)) | st.integers(1, self.pool.num_blocks - 1))
        self.pool.hide(block)
        self.plain.hide(block)

    @rule(resets=st.sampled_from([False, False, False, True]))
    def copy_or_reset(self, *, resets: bool) -> None:
        if not resets:
            self.copy, self.pool = self.pool, self.pool.clone()
            self.copied = seen(self.copy)
            return
        is_idle = not any(self.plain.references.values())
        assert self.pool.reset() == is_idle
        if is_idle:
            self.plain.key_of.clear()
            self.plain.found.clear()

    @invariant()
    def both_tell_the_same(self) -> None:
        assert seen(self.pool) == written(self.plain)

    @invariant()
    def a_copy_stays_as_it_was(self) -> None:
        assert seen(self.copy) == self.copied

    @invariant()
    def what_is_lost_is_counted(self) -> None:
        """Whoever keeps a hit between steps asks the count alone whether it still holds."""
        findable = {(key, blocks[0]) for key, blocks in self.plain.found.items()}
        assert self.findable <= findable or self.pool.num_lost > self.num_lost
        self.findable, self.num_lost = findable, self.pool.num_lost


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
