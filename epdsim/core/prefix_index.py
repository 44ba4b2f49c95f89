"""The prefix index of a router: which engine holds which blocks, from what engines publish, found by what requests say.

An engine publishes each block that it fills: its tokens, that of its parent, and what else its key depends on. A router keys what
was published, and for a request keys what it would be, with tokens and names alone. Both must take for equal what the engine takes
for equal (KEY-PARITY): a key that only one side has finds nothing, or finds what is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import TypeAlias

from epdsim.core.items import MediaFeature
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request
from epdsim.core.rules import Dialect, Rule

PATH = "@"
"""Between the name of an adapter and where it comes from, in `Request.adapter`."""

BlockExtras: TypeAlias = tuple[Hashable, ...]
"""What a block's key depends on beside its tokens and its parent's."""


def whole_extras(request: Request, start: int, end: int) -> BlockExtras:
    """Adapter, items with their place in the block, and in the first block the salt, each with its kind."""
    adapter = () if request.adapter is None else (("adapter", request.adapter),)
    salt = (("salt", request.cache_salt),) if request.cache_salt is not None and not start else ()
    media = tuple(
        ("media", one.identifier, one.position.offset - start)
        for one in request.mm_features
        if one.position.offset < end and one.position.end > start
    )
    return adapter + media + salt


def adapter_by_name(request: Request, start: int, end: int) -> BlockExtras:
    """The adapter's name without its path, on which the engine's own keys depend: vLLM from 0.31 on."""
    return tuple(
        ("adapter", str(request.adapter).partition(PATH)[0]) if one[0] == "adapter" else one  # type: ignore[index]
        for one in whole_extras(request, start, end)
    )


def without_media(request: Request, start: int, end: int) -> BlockExtras:
    """Items are left out (llm-d-kv-cache issue 411)."""
    return tuple(one for one in whole_extras(request, start, end) if one[0] != "media")  # type: ignore[index]


def as_published(extras: BlockExtras) -> BlockExtras:
    """What was published is keyed as it is."""
    return extras


def adapter_as_media(extras: BlockExtras) -> BlockExtras:
    """The adapter's name is read as one more item (llm-d-router issue 2927)."""
    return tuple(("media", one[1], 0) if one[0] == "adapter" else one for one in extras)  # type: ignore[index]


def as_sent(features: Sequence[MediaFeature]) -> Sequence[MediaFeature]:
    """Identifiers and spans of all items."""
    return features


def no_features(_features: Sequence[MediaFeature]) -> Sequence[MediaFeature]:
    """None: the decode leg carries the tokens alone (smg PR 2365)."""
    return ()


PUBLISHED = Rule(
    "prefix_index.published",
    "An engine publishes of a block all that its key depends on.",
    source="vLLM PR 33304",
    ideal=whole_extras,
)
READ = Rule(
    "prefix_index.read",
    "A router keys what an engine has published of a block as the engine does.",
    source="llm-d-router issue 2927",
    ideal=as_published,
)
LOOKED_UP = Rule(
    "prefix_index.looked_up",
    "A router keys a request by all that the engine will key it by.",
    source="llm-d-kv-cache issue 411",
    ideal=whole_extras,
)
DECODE_MEDIA = Rule(
    "prefix_index.decode_media",
    "A decode engine is told identifier and span of every item, though it needs no pixels.",
    source="smg PR 2365",
    ideal=as_sent,
)


def index_keys(request: Request, block_size: int, extras: Callable[[int, int], BlockExtras]) -> list[str]:
    """Keys of the full blocks of a prompt of token ids, each a digest of its parent's key, its tokens and its extras.

    Args:
        request: Whose prompt it is.
        block_size: Tokens of a block.
        extras: Of the block from one token to another.
    """
    assert isinstance(request.prompt, TokenPrompt), "an index keys token ids"
    tokens, parent, keys = request.prompt.token_ids, "", list[str]()
    for end in range(block_size, len(tokens) + 1, block_size):
        start = end - block_size
        content = parent, tuple(tokens[start:end]), extras(start, end)
        parent = sha256(repr(content).encode()).hexdigest()[:16]
        keys.append(parent)
    return keys


def published_keys(request: Request, block_size: int, dialect: Dialect) -> list[str]:
    """Keys under which a router remembers the blocks that an engine publishes of a prompt."""
    publish, read = dialect[PUBLISHED], dialect[READ]
    return index_keys(request, block_size, lambda start, end: read(publish(request, start, end)))


def looked_up_keys(request: Request, block_size: int, dialect: Dialect) -> list[str]:
    """Keys under which a router looks for the blocks of a request."""
    look_up = dialect[LOOKED_UP]
    return index_keys(request, block_size, lambda start, end: look_up(request, start, end))
