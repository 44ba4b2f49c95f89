"""Block keys: what a KV block of a full prefix is known by, so that equal prefixes share blocks.

The key of a block stands for everything its KV content depends on: all tokens up to its end, the media items they belong to and
where in the block those start, the adapter and the cache salt. vLLM chains hashes; here a chain of contents is numbered, so
that equal keys mean equal content without any chance of a collision (KEY-INJ).

Blocks that go on with one run of named content, and with the media item that the first of them overlaps, if any, are not numbered
one by one. The first gets the start of a range of its own, and each that follows the number after its predecessor's: a prompt of a
thousand blocks costs one look-up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Final

from epdsim.core.items import MediaFeature
from epdsim.core.prompt import Prompt, RunPrompt, TokenPrompt, TokenRun, first_tokens, joined_prompt
from epdsim.core.request import Request
from epdsim.core.rules import Dialect, Rule


def media_key(identifier: str, offset: int, block_start: int) -> Hashable:
    """Identity of an item in a block: which one it is, and where it starts relative to the block."""
    return identifier, offset - block_start


def root_key(request: Request) -> Hashable | None:
    """What every block of the request depends on besides its prefix; None when there is nothing."""
    if request.cache_salt is None and request.adapter is None:
        return None
    return request.cache_salt, request.adapter


def next_item(next_item: int, _num_items: int) -> int:
    """The first item that ends behind the blocks that are keyed already."""
    return next_item


def last_item(next_item: int, num_items: int) -> int:
    """The last item of all, as if no block that is filled later overlapped an earlier one: vLLM up to 0.30 (PR 49448)."""
    return max(next_item, num_items - 1)


MEDIA_KEY = Rule(
    "block_keys.media",
    "A block key carries the identifier of each item that the block overlaps and where the item starts relative to the block.",
    source="vLLM PR 11646, restored by PR 36708",
    ideal=media_key,
)
ROOT_KEY = Rule(
    "block_keys.root",
    "A block key carries the request's cache salt and adapter.",
    source="vLLM 0.32 (cache salt in the first block, adapter in every block)",
    ideal=root_key,
)
FILLED_LATER: Rule[Callable[[int, int], int]] = Rule(
    "block_keys.filled_later",
    "A block that output or further input fills carries all items that it overlaps, as one that the prompt has filled does.",
    source="KEY-PARITY, KEY-INJ; vLLM PR 49448",
    ideal=next_item,
)


RANGE: Final = 1 << 20
"""Numbers that belong to one chain: its own, and those of the blocks that go on with the same run of content."""


_OUTPUT: Final = "output"


def is_output(content: Hashable) -> bool:
    """Whether a run's content is what a request has generated: it is named `("output", request_id)`."""
    return isinstance(content, tuple) and content[:1] == (_OUTPUT,)


MANY_KEYS = 1 << 14
"""From so many block keys on, or fewer for a small pool, it is worth a look which of them are still of use."""


class BlockKeyTable:
    """Numbers chains of block contents: equal chains have equal numbers, different ones never do.

    Numbers are multiples of `RANGE`; those between are for the blocks that go on with a chain's last run (`RequestKeys`).

    Args:
        num_blocks: Of the pool that it serves.
    """

    __slots__ = ("_crowded_at", "_least", "_next", "_numbers")

    def __init__(self, num_blocks: int = MANY_KEYS) -> None:
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._next = RANGE
        self._least = self._crowded_at = min(MANY_KEYS, 8 * num_blocks)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def is_crowded(self) -> bool:
        """Whether it is worth a look which chains are still of use (`keep_only`)."""
        return len(self._numbers) > self._crowded_at

    def key(self, parent: int, content: Hashable) -> int:
        """Number of the chain `parent` continued by `content`; 0 is the empty chain."""
        number = self._numbers.setdefault((parent, content), self._next)
        if number == self._next:
            self._next += RANGE
        return number

    def keep_only(self, live: Iterable[int]) -> None:
        """Forget all chains that are not in `live` nor a beginning of one that is; numbers are never used again."""
        parent_of = {number: parent for (parent, _), number in self._numbers.items()}
        kept: set[int] = set()
        for number in live:
            start = number - number % RANGE
            while start and start not in kept:
                kept.add(start)
                parent = parent_of[start]
                start = parent - parent % RANGE
        self._numbers = {chain: number for chain, number in self._numbers.items() if number in kept}
        self._crowded_at = max(self._least, 2 * len(self._numbers))

    def beyond(self, keys: Collection[int]) -> Callable[[int], bool]:
        """Tells of a key whether it stands for a longer prefix that begins with that of one of `keys`."""
        parent_of = {number: parent for (parent, _), number in self._numbers.items()}

        def is_beyond(key: int) -> bool:
            while key:
                start = key - key % RANGE
                if any(start <= one < key for one in keys):
                    return True
                key = parent_of[start]
                if key in keys:
                    return True
            return False

        return is_beyond

    def chains(self) -> Iterator[tuple[int, int, Hashable]]:
        """Number, parent's number and last content of every chain."""
        return ((number, parent, content) for (parent, content), number in self._numbers.items())

    def clone(self) -> BlockKeyTable:
        """An independent copy."""
        other = BlockKeyTable()
        other._numbers = dict(self._numbers)
        other._next, other._least, other._crowded_at = self._next, self._least, self._crowded_at
        return other


class RequestKeys:
    """Block keys of one request, computed when first asked for and once each.

    Args:
        table: Shared by all requests of a block pool.
        request: Its prompt and media, salt and adapter.
        block_size: Tokens of a block.
        dialect: Rules `block_keys.*`.

    Attributes:
        keys: Keys computed so far, one per full block from the first on.
        outputs: Ids of the output tokens, filled by the owner. Only read for a `TokenPrompt`: other prompts name their output
            after the request, as the run `("output", request_id)`.
    """

    __slots__ = (
        "_block_size",
        "_features",
        "_first_item",
        "_has_ids",
        "_keyed_at_once",
        "_media_key",
        "_next_feature",
        "_num_dropped",
        "_num_further",
        "_num_prompt",
        "_output",
        "_output_base",
        "_prompt",
        "_root",
        "_table",
        "keys",
        "outputs",
    )

    def __init__(self, table: BlockKeyTable, request: Request, block_size: int, dialect: Dialect) -> None:
        root = dialect[ROOT_KEY](request)
        self._table = table
        self._prompt = request.prompt
        self._num_prompt = request.prompt.num_tokens
        self._features: Sequence[MediaFeature] = request.mm_features
        self._block_size = block_size
        self._has_ids = isinstance(request.prompt, TokenPrompt)
        self._output = (_OUTPUT, request.request_id)
        self._output_base = 0
        self._num_dropped = 1
        self._media_key: Callable[[str, int, int], Hashable] = dialect[MEDIA_KEY]
        self._first_item: Callable[[int, int], int] = dialect[FILLED_LATER]
        # Tokens of the prompt whose blocks are keyed as soon as it comes.
        self._keyed_at_once = self._num_prompt
        self._next_feature = 0
        self._root = 0 if root is None else table.key(0, ("root", root))
        # Blocks after the last one that go on with its run, and have room in its range.
        self._num_further = 0
        self.keys: list[int] = []
        self.outputs: list[int] = []

    def upto(self, count: int) -> list[int]:
        """Keys of at least the first `count` blocks, all of whose tokens are known."""
        keys = self.keys
        if self._num_further and len(keys) + 1 == count:  # nearly all calls: the block that a request has just filled
            self._num_further -= 1
            keys.append(keys[-1] + 1)
            return keys
        while (wanted := count - len(keys)) > 0:
            if self._num_further:
                fit = min(wanted, self._num_further)
                self._num_further -= fit
                following = keys[-1] + 1
                keys += range(following, following + fit)
                continue
            start = len(keys) * self._block_size
            run, num_whole = self._run_at(start)
            if num_whole > 0:
                keys.append(self._number(run))
                self._num_further = min(num_whole, RANGE) - 1
            else:
                keys.append(self._number(self._block_content(start, start + self._block_size)))
        return keys

    def _number(self, content: Hashable) -> int:
        return self._table.key(self.keys[-1] if self.keys else self._root, content)

    def known(self) -> list[int]:
        """All numbers that this request may still use as parents."""
        return [self._root, *self.keys]

    def _run_at(self, start: int) -> tuple[Hashable, int]:
        """What is the same of all blocks that go on from a token with its run of content, and how many whole ones there are.

        They may overlap one media item, the same in all of them.
        """
        prompt, num_prompt, size = self._prompt, self._num_prompt, self._block_size
        if isinstance(prompt, TokenPrompt):
            return None, 0
        if start >= num_prompt:
            return ("run", self._output, self._output_base + start - num_prompt), RANGE
        if not isinstance(prompt, RunPrompt):
            return None, 0
        content, place, end = prompt.run_at(start)
        features, index = self._features, self._next_feature
        while index < len(features) and features[index].position.end <= start:
            index += 1
        self._next_feature = index
        item = features[index] if index < len(features) and features[index].position.offset < start + size else None
        behind = index if item is None else index + 1
        if behind < len(features):
            end = min(end, features[behind].position.offset)
        if item is None:
            return ("run", content, place), (end - start) // size
        num_whole = min((end - start) // size, -(-(item.position.end - start) // size))
        return ("run", content, place, self._media_key(item.identifier, item.position.offset, start)), num_whole

    def _block_content(self, start: int, end: int) -> Hashable:
        """Content of a block of several runs, with media, or of token ids."""
        content = self._prompt.slice_key(start, end) if end <= self._num_prompt else self._with_output(start, end)
        media = self._media(start, end) if self._next_feature < len(self._features) else ()
        return (content, media) if media else content

    def keep_outputs(self, num_outputs: int, num_kept: int) -> None:
        """Forget all of a turn's output tokens but the first `num_kept`; names of the others are not used again."""
        del self.outputs[num_kept:]
        self._num_dropped = num_outputs - num_kept

    def grow(self, num_outputs: int, addition: Prompt, features: Sequence[MediaFeature]) -> Prompt:
        """Go on with a session's next input.

        Args:
            num_outputs: Output tokens that become a part of the prompt; negative where tokens of that are lost too.
            addition: The input.
            features: All items of the session.

        Returns:
            The whole prompt.

        Raises:
            InputError: The input is of another kind than the prompt.
        """
        num_kept, num_said = self._num_prompt + num_outputs, max(0, num_outputs)
        said = TokenPrompt(self.outputs) if self._has_ids else RunPrompt([self._named_output(0, num_said)])
        kept = self._prompt if num_outputs >= 0 else first_tokens(self._prompt, num_kept)
        self._prompt = joined_prompt(joined_prompt(kept, said), addition)
        self._num_prompt = self._prompt.num_tokens
        self._output_base += num_said + self._num_dropped
        self.outputs.clear()
        del self.keys[num_kept // self._block_size :]
        self._features = features
        if not self.keys:
            self._keyed_at_once = self._num_prompt
        self._go_on()
        return self._prompt

    def _go_on(self) -> None:
        """Number further blocks as if the prompt had been this one from the beginning."""
        start, size = len(self.keys) * self._block_size, self._block_size
        self._num_further = 0
        if start:
            self._next_feature = bisect_right(self._features, start - size, key=_end)
            _, num_whole = self._run_at(start - size)
            self._num_further = max(0, min(num_whole - 1, RANGE - 1 - self.keys[-1] % RANGE))
        self._next_feature = bisect_right(self._features, start, key=_end)

    def _named_output(self, start: int, length: int) -> TokenRun:
        return TokenRun(self._output, self._output_base + start, length)

    def _with_output(self, start: int, end: int) -> Hashable:
        """Content of a block that ends in the output."""
        prompt, num_prompt = self._prompt, self._num_prompt
        if isinstance(prompt, TokenPrompt):
            outputs = self.outputs[max(0, start - num_prompt) : end - num_prompt]
            return (*prompt.token_ids[start:], *outputs)
        tail = self._named_output(0, end - num_prompt)
        if isinstance(prompt, RunPrompt):
            return (*prompt.slice_key(start, num_prompt), tail)
        return prompt.slice_key(start, num_prompt), tail

    def _media(self, start: int, end: int) -> tuple[Hashable, ...]:
        """Keys of the items that a block overlaps."""
        found: list[Hashable] = []
        features, index = self._features, self._next_feature
        if start and end > self._keyed_at_once:
            index = self._first_item(index, len(features))
        while index < len(features) and features[index].position.offset < end:
            feature = features[index]
            found.append(self._media_key(feature.identifier, feature.position.offset, start))
            if feature.position.end > end:
                break
            index += 1
        self._next_feature = index
        return tuple(found)

    def clone(self, table: BlockKeyTable) -> RequestKeys:
        """An independent copy on a copy of the table."""
        other = object.__new__(RequestKeys)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._table = table
        other.keys = list(self.keys)
        other.outputs = list(self.outputs)
        return other


def _end(feature: MediaFeature) -> int:
    return feature.position.end
