"""The pool of KV blocks: who holds which block, which free block goes next, and which block holds a known prefix.

Free blocks stand in one queue. Blocks without a key (nobody can find them again) are at its front and are taken in last-in,
first-out order; blocks with a key follow in the order in which they were freed, so the prefix that has been unused longest is
lost first. A block that is found again leaves the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

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

_FEW = 4
"""Keys that are published faster one by one than as a whole."""
NULL_BLOCK = 0
"""Id of the block that nobody gets."""


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
        "_found",
        "_frees_last",
        "_further_refs",
        "_key_of",
        "_num_doubled",
        "_plain_free",
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
        # References beyond the first, which a block has that is not in the queue.
        self._further_refs: dict[int, int] = {}
        self._key_of: dict[int, int] = {}
        # The queue in two parts: a stack whose end is the front of the queue, and behind it the blocks with a key.
        self._plain_free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached_free: OrderedDict[int, None] = OrderedDict()
        # Blocks by key; several when the same prefix was computed twice at once, the first one then serves hits.
        self._found: dict[int, int | dict[int, None]] = {}
        self._num_doubled = 0

    def find_all(self, keys: Iterable[int]) -> list[int]:
        """Blocks that hold what the keys stand for, up to the first that is not there."""
        get = self._found.get
        blocks: list[int] = []
        for key in keys:
            found = get(key)
            if found is None:
                break
            blocks.append(found if isinstance(found, int) else next(iter(found)))
        return blocks

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody holds, so that holding them makes the pool smaller."""
        free = self._cached_free
        return sum([block in free for block in blocks]) if blocks else 0

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
            pop = self._cached_free.popitem
            cached = [pop(False)[0] for _ in range(count)]
            self._lose(cached)
            taken += cached
        return taken

    def hold(self, blocks: Sequence[int]) -> None:
        """Add a reference to found blocks."""
        free, further = self._cached_free, self._further_refs
        for block in blocks:
            if block in free:
                del free[block]
                self.num_free -= 1
            else:
                further[block] = further.get(block, 0) + 1

    def release(self, table: Sequence[int]) -> None:
        """Give up a request's block table; its tail is lost before its head."""
        ended = self._without_shared(table) if self._further_refs else table
        key_of, free, frees_last = self._key_of, self._cached_free, self._frees_last
        plain: list[int] = []
        for block in reversed(ended):
            if block in key_of or frees_last:
                free[block] = None
            else:
                plain.append(block)
        plain.reverse()
        self._plain_free += plain
        self.num_free += len(ended)

    def _without_shared(self, table: Sequence[int]) -> Sequence[int]:
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

    def publish(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Make full blocks findable, each by its key."""
        all_found, key_of = self._found, self._key_of
        if len(keys) > _FEW and all_found.keys().isdisjoint(keys):
            key_of.update(zip(blocks, keys, strict=True))
            all_found.update(zip(keys, blocks, strict=True))
            return
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key
            found = all_found.setdefault(key, block)
            if isinstance(found, dict):
                found[block] = None
            elif found != block:
                all_found[key] = {found: None, block: None}
                self._num_doubled += 1

    def lose_key(self, block: int) -> None:
        """Make a block unfindable: its content is about to be overwritten, or will not be written after all."""
        self._lose([block])

    def _lose(self, blocks: Sequence[int]) -> None:
        all_found, take_key = self._found, self._key_of.pop
        self.num_lost += len(blocks)
        if not self._key_of:
            return
        if not self._num_doubled:
            for block in blocks:
                del all_found[take_key(block)]
            return
        for block in blocks:
            key = take_key(block)
            found = all_found.pop(key)
            if isinstance(found, dict):
                del found[block]
                if len(found) > 1:
                    all_found[key] = found
                else:
                    (all_found[key],) = found
                    self._num_doubled -= 1

    def hide(self, block: int) -> None:
        """Make a block unfindable that has a key or not, held or free; a free one then is among the next to be taken."""
        if not self.key_of(block):
            return
        self.lose_key(block)
        if block in self._cached_free:
            del self._cached_free[block]
            self._plain_free.append(block)

    def reset(self) -> bool:
        """Forget all prefixes; False and nothing done while a block is in use."""
        if self.num_free != self.num_blocks - 1:
            return False
        behind = list(self._cached_free)
        behind.reverse()
        self._plain_free = behind + self._plain_free
        self._cached_free.clear()
        self._found.clear()
        self._num_doubled = 0
        self._key_of.clear()
        self.num_lost += 1
        return True

    def keys(self) -> Iterator[int]:
        """All keys that can be found."""
        return iter(self._found)

    def serving(self) -> list[int]:
        """Blocks that serve hits, where several hold the same, in ascending order."""
        return sorted(next(iter(found)) for found in self._found.values() if not isinstance(found, int))

    def key_of(self, block: int) -> int:
        """Key of a block; 0 for none."""
        return self._key_of.get(block, 0)

    def references(self, block: int) -> int:
        """How many tables a block is in; slow."""
        is_free = block in self._cached_free or block in self._plain_free
        return 0 if is_free else 1 + self._further_refs.get(block, 0)

    def free_queue(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return [*reversed(self._plain_free), *self._cached_free]

    def clone(self) -> BlockPool:
        """An independent copy."""
        other = object.__new__(BlockPool)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._further_refs = dict(self._further_refs)
        other._key_of, other._plain_free = dict(self._key_of), list(self._plain_free)
        other._cached_free = OrderedDict(self._cached_free)
        other._found = {key: found if isinstance(found, int) else dict(found) for key, found in self._found.items()}
        return other
