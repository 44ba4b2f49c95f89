"""Block keys: what a KV block of a full prefix is known by, so that equal prefixes share blocks.

The key of a block stands for everything its KV content depends on: all tokens up to its end, the media items they belong to and
where in the block those start, the adapter and the cache salt. vLLM chains hashes; here a chain of contents is numbered, so
that equal keys mean equal content without any chance of a collision (KEY-INJ), and a key costs one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from epdsim.core.items import MediaFeature
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
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


class BlockKeyTable:
    """Numbers chains of block contents: equal chains have equal numbers, different ones never do."""

    __slots__ = ("_next", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._numbers)

    def key(self, parent: int, content: Hashable) -> int:
        """Number of the chain `parent` continued by `content`; 0 is the empty chain."""
        number = self._numbers.setdefault((parent, content), self._next)
        if number == self._next:
            self._next += 1
        return number

    def keep_only(self, live: Iterable[int]) -> None:
        """Forget all chains that are not in `live` nor a beginning of one that is; numbers are never used again."""
        parent_of = {number: parent for (parent, _), number in self._numbers.items()}
        kept: set[int] = set()
        for number in live:
            while number and number not in kept:
                kept.add(number)
                number = parent_of[number]  # noqa: PLW2901  (walking up the chain)
        self._numbers = {chain: number for chain, number in self._numbers.items() if number in kept}

    def chains(self) -> Iterator[tuple[int, int, Hashable]]:
        """Number, parent's number and last content of every chain."""
        return ((number, parent, content) for (parent, content), number in self._numbers.items())

    def clone(self) -> BlockKeyTable:
        """An independent copy."""
        other = BlockKeyTable()
        other._numbers = dict(self._numbers)
        other._next = self._next
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
        "_media_key",
        "_next_feature",
        "_num_prompt",
        "_output",
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
        self._output = ("output", request.request_id)
        self._media_key: Callable[[str, int, int], Hashable] = dialect[MEDIA_KEY]
        self._next_feature = 0
        self._root = 0 if root is None else table.key(0, ("root", root))
        self.keys: list[int] = []
        self.outputs: list[int] = []

    def upto(self, count: int) -> list[int]:
        """Keys of at least the first `count` blocks, all of whose tokens are known."""
        keys, size, table = self.keys, self._block_size, self._table
        number = keys[-1] if keys else self._root
        for start in range(len(keys) * size, count * size, size):
            end = start + size
            content = self._prompt.slice_key(start, end) if end <= self._num_prompt else self._with_output(start, end)
            media = self._media(start, end) if self._next_feature < len(self._features) else ()
            number = table.key(number, (content, media) if media else content)
            keys.append(number)
        return keys

    def known(self) -> list[int]:
        """All numbers that this request may still use as parents."""
        return [self._root, *self.keys]

    def _with_output(self, start: int, end: int) -> Hashable:
        """Content of a block that ends in the output."""
        prompt, num_prompt = self._prompt, self._num_prompt
        if isinstance(prompt, TokenPrompt):
            outputs = self.outputs[max(0, start - num_prompt) : end - num_prompt]
            return (*prompt.token_ids[start:], *outputs)
        if start >= num_prompt:
            return (TokenRun(self._output, start - num_prompt, end - start),)
        tail = TokenRun(self._output, 0, end - num_prompt)
        if isinstance(prompt, RunPrompt):
            return (*prompt.slice_key(start, num_prompt), tail)
        return prompt.slice_key(start, num_prompt), tail

    def _media(self, start: int, end: int) -> tuple[Hashable, ...]:
        """Keys of the items that a block overlaps."""
        found: list[Hashable] = []
        features, index = self._features, self._next_feature
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
