"""The pool of KV blocks: who holds which block, which free block goes next, and which block holds a known prefix.

Free blocks stand in one queue. Blocks without a key (nobody can find them again) are at its front and are taken in last-in,
first-out order; blocks with a key follow in the order in which they were freed, so the prefix that has been unused longest is
lost first. A block that is found again leaves the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from epdsim.core.kv.block_keys import RANGE
from epdsim.core.kv.free_queue import FreeQueue
from epdsim.core.rules import IDEAL, Dialect, Rule


def longest_hit(num_tokens: int) -> int:
    """Tokens that a prefix hit may cover at most: the last known token is computed in any case, to sample from it."""
    return num_tokens - 1


def reused_first() -> bool:
    """Whether a freed block without a key is taken before those that have been free for longer."""
    return True


def reused_last() -> bool:
    """After them, if there is no prefix cache at all, so that the whole pool is cycled through: vLLM 0.27."""
    return False


HIT_LIMIT = Rule(
    "kv_blocks.hit_limit",
    "A prefix hit leaves at least the last known token to compute; hits are whole blocks, so a full hit backs off by one block.",
    source="vLLM 0.32",
    ideal=longest_hit,
)
REUSE = Rule(
    "kv_blocks.reuse",
    "A block that holds nothing of use is the next to be taken.",
    source="vLLM PR 48017 lost it without prefix caching, PR 51482 restored it",
    ideal=reused_first,
)

NULL_BLOCK: Final = 0
"""Id of the block that nobody gets."""


@lru_cache(maxsize=16)
def _falling_ids(num_blocks: int) -> list[int]:
    """Ids of all blocks but the null block; pools of one size share the very numbers, or they crowd a processor's cache."""
    return list(range(num_blocks - 1, NULL_BLOCK, -1))


def _end_of_run(keys: list[int], start: int, most: int) -> int:
    """Where the keys end that count on from a place, `most` at the latest."""
    low, high, ahead = start, most, keys[start] - start
    if keys[high - 1] - high + 1 == ahead:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle] - middle == ahead:
            low = middle
        else:
            high = middle
    return high


class _Row:
    """Blocks of one range of keys, which count on along a chain.

    Attributes:
        number: Of the range.
        blocks: By place in the range, the null block in gaps; the last one is none.
    """

    __slots__ = ("blocks", "number")

    def __init__(self, number: int, blocks: list[int]) -> None:
        self.number, self.blocks = number, blocks


class BlockPool:
    """All KV blocks of an engine.

    Args:
        num_blocks: Blocks in all, the null block among them.
        enable_caching: Whether blocks keep their key, and thus can be found, after they are freed.
        dialect: Rule `kv_blocks.reuse`.

    Attributes:
        num_free: Blocks that can be taken, cached ones among them.
        num_lost: Times that a key was lost.
    """

    __slots__ = (
        "_cached_free",
        "_doubles",
        "_frees_last",
        "_further_refs",
        "_is_held",
        "_place_of",
        "_plain_free",
        "_row_of",
        "_rows",
        "enable_caching",
        "num_blocks",
        "num_free",
        "num_lost",
    )

    def __init__(self, num_blocks: int, *, enable_caching: bool, dialect: Dialect = IDEAL) -> None:
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.num_free = num_blocks - 1
        self.num_lost = 0
        self._frees_last = not enable_caching and not dialect[REUSE]()
        # Whether each block is in a table, and references beyond the first.
        self._is_held = [False] * num_blocks
        self._further_refs: dict[int, int] = {}
        # The queue in two parts: a stack whose end is the front of the queue, and behind it the blocks with a key.
        self._plain_free = list(_falling_ids(num_blocks))
        self._cached_free = FreeQueue()
        # Blocks by key, and of each block that has one its row and its place there: nearly all are small numbers, which are made
        # once, whereas keys would be made, fetched and freed for each block.
        self._rows: dict[int, _Row] = {}
        self._row_of: list[_Row | None] = [None] * num_blocks
        self._place_of = [0] * num_blocks
        # Where the same prefix was computed several times at once: all blocks with that key, the first one serves hits.
        self._doubles: dict[int, list[int]] = {}

    def find_all(self, keys: list[int]) -> list[int]:
        """Blocks that hold what the keys stand for, up to the first that is not there.

        Args:
            keys: Ascending, as the keys along a prefix are.
        """
        rows = self._rows
        blocks: list[int] = []
        if keys and keys[-1] - keys[0] == len(keys) - 1 and (row := rows.get(keys[0] // RANGE)):
            blocks = row.blocks[keys[0] % RANGE : keys[-1] % RANGE + 1]
            if NULL_BLOCK in blocks:
                del blocks[blocks.index(NULL_BLOCK) :]
            return blocks
        for key in keys:
            row, place = rows.get(key // RANGE), key % RANGE
            if row is None or place >= len(row.blocks) or not row.blocks[place]:
                break
            blocks.append(row.blocks[place])
        return blocks

    def num_idle(self, blocks: list[int]) -> int:
        """How many of `blocks` nobody holds, so that holding them makes the pool smaller."""
        is_held = self._is_held
        return sum([not is_held[block] for block in blocks]) if blocks else 0

    def take(self, count: int) -> list[int]:
        """Take the next `count` free blocks; what cached ones among them hold is lost."""
        assert count <= self.num_free, "callers ask num_free first"
        if count <= 0:
            return []
        plain = self._plain_free
        taken = plain[: -count - 1 : -1]
        del plain[-count:]
        self.num_free -= count
        count -= len(taken)
        if count:
            cached = self._cached_free.take(count)
            if self._rows:
                self._lose(cached)
            taken += cached
        is_held = self._is_held
        for block in taken:
            is_held[block] = True
        return taken

    def hold(self, blocks: list[int]) -> None:
        """Add a reference to found blocks."""
        is_held, further = self._is_held, self._further_refs
        for block in blocks:
            if is_held[block]:
                further[block] = further.get(block, 0) + 1
            else:
                is_held[block] = True
                self._cached_free.remove(block)
                self.num_free -= 1

    def release(self, table: list[int], num_keyed: int | None = None) -> None:
        """Give up a request's block table; its tail is lost before its head.

        Args:
            table: Its blocks.
            num_keyed: How many leading ones have a key, and no other has, where the caller has kept count.
        """
        ended = self._without_shared(table) if self._further_refs else table
        if not ended:
            return
        is_held = self._is_held
        for block in ended:
            is_held[block] = False
        self.num_free += len(ended)
        if self._frees_last:
            self._cached_free.append(ended[::-1])
        elif num_keyed is not None and ended is table:
            keyed = table[:num_keyed]
            keyed.reverse()
            self._cached_free.append(keyed)
            self._plain_free += table[num_keyed:]
        else:
            self._free_by_key(ended)

    def _free_by_key(self, ended: list[int]) -> None:
        """Queue blocks that nobody holds any more, each where its key says."""
        row_of = self._row_of
        rows = [row_of[block] for block in ended]
        num_keyed = rows.index(None) if None in rows else len(rows)
        keyed, plain = ended[:num_keyed], ended[num_keyed:]
        if any(rows[num_keyed:]):  # one before them has lost its key
            keyed += [block for block in plain if row_of[block] is not None]
            plain = [block for block in plain if row_of[block] is None]
        keyed.reverse()
        self._cached_free.append(keyed)
        self._plain_free += plain

    def _without_shared(self, table: list[int]) -> list[int]:
        """The blocks of a table that nobody else holds; the others have one reference less."""
        further = self._further_refs
        ended: list[int] = []
        for block in table:
            if block not in further:
                ended.append(block)
            elif further[block] == 1:
                del further[block]
            else:
                further[block] -= 1
        return ended

    def publish(self, blocks: list[int], keys: list[int]) -> None:
        """Make full blocks findable.

        Args:
            blocks: Without a key.
            keys: Of each; ascending, as the keys along a prefix are.
        """
        count = len(keys)
        assert len(blocks) == count, "each block has a key"
        if not count:
            return
        place = keys[0] % RANGE
        if keys[-1] - keys[0] == count - 1 and place + count <= RANGE:
            row = self._row(keys[0])
            if len(row.blocks) == place:  # nearly always: the next blocks of a request
                self._extend(row, blocks)
                return
        end = 0
        while end < count:
            start, key = end, keys[end]
            row, place = self._row(key), key % RANGE
            if place < len(row.blocks):
                self._publish_again(row, key, blocks[start])
                end += 1
                continue
            # Nobody has published the keys of the row's rest, nor can have before those ahead of them.
            end = _end_of_run(keys, start, min(count, start + RANGE - place))
            row.blocks += [NULL_BLOCK] * (place - len(row.blocks))
            self._extend(row, blocks[start:end])

    def _row(self, key: int) -> _Row:
        """The row that a key belongs to, an empty one if there is none."""
        row = self._rows.get(key // RANGE)
        if row is None:
            row = self._rows[key // RANGE] = _Row(key // RANGE, [])
        return row

    def _extend(self, row: _Row, blocks: list[int]) -> None:
        """Make blocks findable by the keys that follow those of a row."""
        row_of, place_of, place = self._row_of, self._place_of, len(row.blocks)
        row.blocks += blocks
        for block in blocks:
            row_of[block] = row
            place_of[block] = place
            place += 1

    def _publish_again(self, row: _Row, key: int, block: int) -> None:
        """Make a block findable whose key stands within the row."""
        found = row.blocks[key % RANGE]
        if not found:
            row.blocks[key % RANGE] = block
        elif found != block:
            self._doubles.setdefault(key, [found]).append(block)
        self._row_of[block], self._place_of[block] = row, key % RANGE

    def lose_key(self, block: int) -> None:
        """Make a block unfindable: its content is about to be overwritten, or will not be written after all."""
        self._lose([block])

    def _lose(self, blocks: list[int]) -> None:
        """Make blocks unfindable, each of which has a key."""
        self.num_lost += len(blocks)
        row_of, end = self._row_of, 0
        while end < len(blocks):
            start, row, place = end, row_of[blocks[end]], self._place_of[blocks[end]]
            assert row is not None, "each has a key"
            standing, end = row.blocks, start + 1
            if self._doubles and row.number * RANGE + place in self._doubles:
                self._lose_double(row, place, blocks[start])
                continue
            if place == len(standing) - 1 and not self._doubles:
                # The tail of a row, as it was freed, is the usual case.
                most = min(len(blocks), start + place + 1)
                if most > end and standing[place - (most - start) + 1 :] == blocks[start:most][::-1]:
                    end = most
                del standing[place - (end - start) + 1 :]
            else:
                standing[place] = NULL_BLOCK
            while standing and not standing[-1]:
                standing.pop()
            if not standing:
                del self._rows[row.number]
        for block in blocks:
            row_of[block] = None

    def _lose_double(self, row: _Row, place: int, block: int) -> None:
        """Make one of several blocks with a key unfindable; the next one serves then."""
        key = row.number * RANGE + place
        found = self._doubles[key]
        found.remove(block)
        row.blocks[place] = found[0]
        if len(found) == 1:
            del self._doubles[key]

    def hide(self, block: int) -> None:
        """Make a block unfindable that has a key or not, held or free; a free one then is among the next to be taken."""
        if not self.key_of(block):
            return
        self.lose_key(block)
        if not self._is_held[block]:
            self._cached_free.remove(block)
            self._plain_free.append(block)

    def reset(self) -> bool:
        """Forget all prefixes; False and nothing done while a block is in use."""
        if self.num_free != self.num_blocks - 1:
            return False
        behind = list(self._cached_free)
        behind.reverse()
        self._plain_free = behind + self._plain_free
        self._cached_free.clear()
        self._rows.clear()
        self._doubles.clear()
        self._row_of = [None] * self.num_blocks
        self.num_lost += 1
        return True

    def keys(self) -> Iterator[int]:
        """All keys that can be found."""
        for number, row in self._rows.items():
            for place, block in enumerate(row.blocks):
                if block:
                    yield number * RANGE + place

    def serving(self) -> list[int]:
        """Blocks that serve hits, where several hold the same, in ascending order."""
        return sorted(found[0] for found in self._doubles.values())

    def key_of(self, block: int) -> int:
        """Key of a block; 0 for none."""
        row = self._row_of[block]
        return 0 if row is None else row.number * RANGE + self._place_of[block]

    def references(self, block: int) -> int:
        """How many tables a block is in."""
        return 1 + self._further_refs.get(block, 0) if self._is_held[block] else 0

    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return [*reversed(self._plain_free), *self._cached_free]

    def clone(self) -> BlockPool:
        """An independent copy."""
        other = object.__new__(BlockPool)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._is_held, other._further_refs = list(self._is_held), dict(self._further_refs)
        other._plain_free, other._cached_free = list(self._plain_free), self._cached_free.copy()
        other._rows = {number: _Row(number, list(row.blocks)) for number, row in self._rows.items()}
        other._row_of = [None if row is None else other._rows[row.number] for row in self._row_of]
        other._place_of = list(self._place_of)
        other._doubles = {key: list(found) for key, found in self._doubles.items()}
        return other
