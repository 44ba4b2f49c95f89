"""Asks a system by what it knows media and KV blocks, and tells it as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.legs import decode_leg
from epdsim.core.media_hash import RawItem, media_hash
from epdsim.core.prefix_index import DECODE_MEDIA, looked_up_keys, published_keys
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import features_of, tables_of
from epdsim.events import BlocksKeyed, HashedItem, MediaHashed, Sink
from epdsim.sut.identity_cases import HashCase, HashItem, KeyCase, KeyedRequest

INSTANCE = "identity"
_CASE = "c0"


class ComponentKeys(NamedTuple):
    """Keys of the full blocks of some prompts, as one component computes them; see `BlocksKeyed`."""

    component: str
    space: str
    keys: Sequence[Sequence[str]]


class IdentityUnderTest(Protocol):
    """By what a system knows things."""

    def media_hash(self, item: RawItem, options: Mapping[str, Any]) -> str:
        """The hash of an item with its processing options."""
        ...

    def block_keys(self, requests: Sequence[KeyedRequest], block_size: int) -> Sequence[ComponentKeys]:
        """Keys of the full blocks of prompts and their output, by every component that computes some; the engine's first."""
        ...


class ReferenceIdentity:
    """The model's, in a dialect."""

    def __init__(self, dialect: Dialect = IDEAL) -> None:
        self._dialect = dialect

    def media_hash(self, item: RawItem, options: Mapping[str, Any]) -> str:
        """The hash of an item."""
        return media_hash(item, options, self._dialect)

    def block_keys(self, requests: Sequence[KeyedRequest], block_size: int) -> Sequence[ComponentKeys]:
        """Of engine, decode engine, a resumed request, and a router's index and look-up."""
        rules, table = self._dialect, BlockKeyTable()

        def own(request: Request, outputs: Sequence[int] = ()) -> list[str]:
            keys = RequestKeys(table, request, block_size, rules)
            # As an engine does: the prompt's blocks first, those with output as it comes.
            keys.upto(request.prompt.num_tokens // block_size)
            keys.outputs += outputs
            found = keys.upto((request.prompt.num_tokens + len(outputs)) // block_size)
            return [str(key) for key in found]

        asked = [one.request(f"r{place}") for place, one in enumerate(requests)]
        whole = [
            replace(one, prompt=TokenPrompt([*case.tokens, *case.outputs]))
            for one, case in zip(asked, requests, strict=True)
        ]
        engine = [own(one, case.outputs) for one, case in zip(asked, requests, strict=True)]
        return [
            ComponentKeys("engine", "engine", engine),
            ComponentKeys("decode leg", "engine", [own(self._decoded(one)) for one in whole]),
            ComponentKeys("next turn", "engine", [own(one) for one in whole]),
            ComponentKeys("index", "router", [published_keys(one, block_size, rules) for one in whole]),
            ComponentKeys("look-up", "router", [looked_up_keys(one, block_size, rules) for one in whole]),
        ]

    def _decoded(self, request: Request) -> Request:
        """The request as the decode engine gets it, by way of its leg."""
        tables = tables_of(request.mm_features)
        leg = decode_leg(request.request_id, request.prompt, tables, kv_transfer_params=None)
        features = features_of(leg.tables, self._dialect) if leg.tables is not None else ()
        return replace(request, mm_features=tuple(self._dialect[DECODE_MEDIA](features)))


def ask_hashes(case: HashCase, system: IdentityUnderTest, sink: Sink) -> None:
    """Have all items hashed."""
    told = [_hashed(one, system.media_hash(one.item(), one.options)) for one in case.items]
    sink(MediaHashed(0, INSTANCE, _CASE, told))


def _hashed(one: HashItem, mm_hash: str) -> HashedItem:
    what = f"image {one.mode}" if one.mode else f"array {one.dtype}"
    options = ", ".join(f"{name}={value!r}" for name, value in one.options.items())
    told = f"{what} {'x'.join(map(str, one.shape))}{f' with {options}' if options else ''}"
    layout = one.shape, one.dtype, one.mode, one.palette, _plain(one.options)
    return HashedItem(told, _digest(repr(layout).encode()), _digest(one.data), mm_hash, one.given_id or "")


def _plain(value: Any) -> Any:
    """Options in a form that is equal where they are: mappings in the order of names, whole numbers as such."""
    if isinstance(value, dict):
        return sorted((name, _plain(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=6).hexdigest()


def ask_keys(case: KeyCase, system: IdentityUnderTest, sink: Sink) -> None:
    """Have all components key all prompts."""
    names = [f"r{place}" for place in range(len(case.items))]
    items = {name: [item.identifier for item in one.items] for name, one in zip(names, case.items, strict=True)}
    for one in system.block_keys(case.items, case.block_size):
        keys = dict(zip(names, one.keys, strict=True))
        sink(BlocksKeyed(0, INSTANCE, _CASE, one.component, one.space, keys, items))
