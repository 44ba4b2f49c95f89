"""Cases of identity: media to be hashed, and prompts whose blocks several components key."""

from __future__ import annotations

from typing import Any

import msgspec

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.media_hash import RawItem
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request


class HashItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item to be hashed; see `RawItem`.

    Attributes:
        options: With which it is processed: None, truth values, numbers, texts, lists and mappings of them.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str = "uint8"
    mode: str = ""
    palette: bytes = b""
    given_id: str | None = None
    options: dict[str, Any] = {}

    def item(self) -> RawItem:
        """As the core has it."""
        return RawItem(self.data, self.shape, self.dtype, self.mode, self.palette, self.given_id)


class HashCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="hash"):
    """Items of which some are nearly equal, or equal."""

    items: list[HashItem]


class KeyedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One media item of a prompt."""

    identifier: str
    offset: int
    length: int


class KeyedRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt to be keyed.

    Attributes:
        outputs: Tokens that the engine has sampled behind it.
        adapter: Its name; None for the model itself.
        adapter_path: Where the adapter of that name comes from.
    """

    tokens: list[int]
    items: list[KeyedItem] = []
    outputs: list[int] = []
    cache_salt: str | None = None
    adapter: str | None = None
    adapter_path: str = "/a"

    def features(self) -> list[MediaFeature]:
        """Its items, as a receiver without their pixels has them."""
        return [
            MediaFeature(
                "image", one.identifier, PlaceholderRange(one.offset, one.length), None, mm_hash=one.identifier
            )
            for one in self.items
        ]

    def request(self, name: str) -> Request:
        """As the core has it; an adapter is what its name and its path say."""
        adapter = None if self.adapter is None else f"{self.adapter}@{self.adapter_path}"
        features = tuple(self.features())
        return Request(name, TokenPrompt(self.tokens), 1, features, cache_salt=self.cache_salt, adapter=adapter)


class KeyCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="keys"):
    """Prompts, some of which begin alike."""

    block_size: int
    items: list[KeyedRequest]
