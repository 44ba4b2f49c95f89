"""What a scheduler remembers of a request between steps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from epdsim.core.block_keys import RequestKeys
from epdsim.core.items import MediaFeature
from epdsim.core.prompt import TokenPrompt
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
        request_id: Its id.
        features: Its media items in order of offset.
        keys: Its block keys.
        outputs: Ids of its output tokens, or None when it names its output without ids.
        status: Where it stands.
        num_prompt: Tokens of the prompt.
        num_tokens: Known tokens: prompt and output so far.
        asked_tokens: Known tokens at which it has all that it asked for.
        end_tokens: Known tokens at which it ends: then, or when the model takes no more.
        num_computed: Tokens whose KV cache is written, or will be by steps that are under way.
        num_placeholders: Output tokens that steps under way will yield (async scheduling).
        num_in_flight: Tokens of steps whose output has not come back.
        num_stale: Those of them that were scheduled before the last preemption.
        blocks: Block table.
        capacity: Tokens that the table has room for.
        num_published: Leading blocks of the table that can be found by others.
        publish_at: Tokens from which on there may be more of them.
        num_remote: Leading tokens whose KV cache is still to be taken over at admission.
        hit: Blocks found for its prefix the last time they were looked for.
        hit_epoch: The pool's count of lost keys at that time; -1 when they must be looked for again.
        media_starts: First token of each media span.
        media_ends: End of each media span.
        media_embeds: Encoder-cache slots of each item.
        last_media_end: End of the last span; 0 without media.
        sent: Features as the workers hold them; followed only where the strip in force needs to know.
    """

    __slots__ = (
        "asked_tokens",
        "blocks",
        "capacity",
        "end_tokens",
        "features",
        "hit",
        "hit_epoch",
        "keys",
        "last_media_end",
        "media_embeds",
        "media_ends",
        "media_starts",
        "num_computed",
        "num_in_flight",
        "num_placeholders",
        "num_prompt",
        "num_published",
        "num_remote",
        "num_stale",
        "num_tokens",
        "outputs",
        "publish_at",
        "request",
        "request_id",
        "sent",
        "status",
    )

    def __init__(self, request: Request, keys: RequestKeys, media_embeds: tuple[int, ...], max_model_len: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.features = request.mm_features
        self.keys = keys
        self.outputs = keys.outputs if isinstance(request.prompt, TokenPrompt) else None
        self.status = Status.WAITING
        self.num_prompt = self.num_tokens = request.prompt.num_tokens
        self.asked_tokens = self.num_prompt + request.max_tokens
        self.end_tokens = min(self.asked_tokens, max_model_len)
        self.num_computed = self.num_placeholders = self.num_in_flight = self.num_stale = 0
        self.blocks: list[int] = []
        self.capacity = self.num_published = self.publish_at = 0
        self.num_remote = request.num_remote_tokens
        self.hit: list[int] = []
        self.hit_epoch = -1
        self.media_starts = tuple(feature.position.offset for feature in self.features)
        self.media_ends = tuple(feature.position.end for feature in self.features)
        self.media_embeds = media_embeds
        self.last_media_end = max(self.media_ends, default=0)
        self.sent: Sequence[MediaFeature] = ()

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
        other.outputs = None if self.outputs is None else keys.outputs
        other.blocks = list(self.blocks)
        other.hit = list(self.hit)
        return other
