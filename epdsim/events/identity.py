"""By what names things are known: media by hashes, KV blocks by keys, sessions by what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epdsim.events.base import Event


class HashedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One media item and what it is known by.

    Attributes:
        told: What it is, in few words.
        layout: Digest of all that the model sees of it, bytes aside: shape, dtype, mode, palette and options.
        data: Digest of its bytes.
        given_id: What its client calls it; empty for nothing.
        mm_hash: The hash.
    """

    told: str
    layout: str
    data: str
    mm_hash: str
    given_id: str = ""


class MediaHashed(Event, frozen=True):
    """Media items were hashed, each with its processing options."""

    is_detail: ClassVar[bool] = True

    case: str
    items: Sequence[HashedItem]


class SessionItem(msgspec.Struct, frozen=True):
    """A media item of a session, where it stands in all that the session holds."""

    identifier: str
    offset: int
    length: int


class SessionSeen(Event, frozen=True):
    """A streaming session has taken in an input.

    Attributes:
        token_ids: All its tokens: inputs, and of each turn the output that it keeps.
        items: All its media.
        keys: Keys of its full blocks.
        whole_keys: Those that one request with the same tokens and media has.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    token_ids: Sequence[int]
    items: Sequence[SessionItem] = ()
    keys: Sequence[str] = ()
    whole_keys: Sequence[str] = ()


class BlocksKeyed(Event, frozen=True):
    """Somebody computed the keys of the full KV blocks of some prompts.

    Attributes:
        case: Whoever computes keys of the same prompts shares it.
        component: Who, for example `"engine"`, `"decode leg"`, `"index"` (from an engine's events) or `"look-up"` (from a request).
        space: Whose keys they are; those of one space are compared as they are, of different ones only which blocks they take
            for equal.
        keys: By request.
        items: By request, identifiers of its media.
    """

    is_detail: ClassVar[bool] = True

    case: str
    component: str
    space: str
    keys: Mapping[str, Sequence[str]]
    items: Mapping[str, Sequence[str]] = {}
