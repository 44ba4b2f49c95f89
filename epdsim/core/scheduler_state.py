"""What a scheduler remembers of a request between steps."""

from __future__ import annotations

from enum import Enum

from epdsim.core.block_keys import RequestKeys
from epdsim.core.request import Request


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"


class RequestState:
    """One live request.

    Attributes:
        request: As it was added.
        keys: Its block keys, and its output ids.
        status: Where it stands.
        num_tokens: Known tokens: prompt and output so far.
        end_tokens: Known tokens at which it ends.
        num_computed: Tokens whose KV cache is written, or will be by steps that are under way.
        num_placeholders: Output tokens that steps under way will yield (async scheduling).
        num_in_flight: Tokens of steps whose output has not come back.
        num_stale: Those of them that were scheduled before the last preemption.
        blocks: Block table.
        num_published: Leading blocks of the table that can be found by others.
        num_remote: Leading tokens whose KV cache is still to be taken over at admission.
        media_ends: End of each media span.
        media_embeds: Encoder-cache slots of each item.
        last_media_end: End of the last span; 0 without media.
    """

    __slots__ = (
        "blocks",
        "end_tokens",
        "keys",
        "last_media_end",
        "media_embeds",
        "media_ends",
        "num_computed",
        "num_in_flight",
        "num_placeholders",
        "num_published",
        "num_remote",
        "num_stale",
        "num_tokens",
        "request",
        "request_id",
        "status",
    )

    def __init__(self, request: Request, keys: RequestKeys, end_tokens: int, media_embeds: tuple[int, ...]) -> None:
        self.request = request
        self.request_id = request.request_id
        self.keys = keys
        self.status = Status.WAITING
        self.num_tokens = request.prompt.num_tokens
        self.end_tokens = end_tokens
        self.num_computed = 0
        self.num_placeholders = 0
        self.num_in_flight = 0
        self.num_stale = 0
        self.blocks: list[int] = []
        self.num_published = 0
        self.num_remote = request.num_remote_tokens
        self.media_ends = tuple(feature.position.end for feature in request.mm_features)
        self.media_embeds = media_embeds
        self.last_media_end = max(self.media_ends, default=0)

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Place in the order of policy `priority`, smaller first."""
        return self.request.priority, self.request.arrival_time, self.request_id

    def clone(self, keys: RequestKeys) -> RequestState:
        """An independent copy on a copy of its keys."""
        other = object.__new__(RequestState)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.keys = keys
        other.blocks = list(self.blocks)
        return other
