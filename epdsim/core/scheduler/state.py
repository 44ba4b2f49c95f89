"""What a scheduler remembers of a request between steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request, StreamingUpdate


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    PREEMPTED = "preempted"
    STREAMING = "waiting for input"


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
        num_forgotten: Tokens of it besides that a release counts and has lost (`sessions.frontier`).
        num_tokens: Known tokens: prompt and output so far.
        asked_tokens: Known tokens at which it has all that it asked for.
        end_tokens: Known tokens at which it ends: then, or when the model takes no more.
        num_computed: Tokens whose KV cache is written, or will be by steps that are under way.
        num_placeholders: Output tokens that steps under way will yield (async scheduling).
        num_in_flight: Tokens of steps whose output has not come back.
        num_stale: Those of them that were scheduled before the last preemption, or in a turn that is over.
        drops_stale: Whether their output is dropped, so that the request need not wait for it.
        num_drafts: Draft tokens that the next step may verify.
        is_prefill: Whether its last chunk left known tokens to compute; followed only with a drafter.
        blocks: Block table.
        cross_blocks: Blocks for cross attention over the media items (encoder-decoder models).
        num_cross_blocks: How many of these it needs while it runs.
        capacity: Tokens that the table has room for.
        num_published: Leading blocks of the table that can be found by others.
        publish_at: Tokens from which on there may be more of them.
        num_loads: Admissions at which remote tokens may still be loaded.
        num_unready: Look-ups for them that are still answered with "not yet".
        num_cached: Tokens that were found in the prefix cache when an asynchronous load began.
        was_preempted: Whether workers know it already, so that an admission is a resume.
        last_step: Number of the last step that computes something of it; followed where frees are deferred.
        hit: Blocks found for its prefix the last time they were looked for.
        hit_epoch: The pool's count of lost keys at that time; -1 when they must be looked for again.
        media_starts: First token of each media span.
        media_ends: End of each media span.
        media_embeds: Encoder-cache slots of each item.
        last_media_end: End of the last span; 0 without media.
        sent: Features as the workers hold them; followed only where the strip in force needs to know.
        num_told: How many of them a session that goes on need not be sent again.
        urgency: Place in the order of policy `priority`, smaller first.
        stop_token_ids: Output tokens that end it.
        updates: Inputs of a session that have not been taken in, None for the end of the session; None when it is no session.
    """

    __slots__ = (
        "asked_tokens",
        "blocks",
        "capacity",
        "cross_blocks",
        "drops_stale",
        "end_tokens",
        "features",
        "hit",
        "hit_epoch",
        "is_prefill",
        "keys",
        "last_media_end",
        "last_step",
        "media_embeds",
        "media_ends",
        "media_starts",
        "num_cached",
        "num_computed",
        "num_cross_blocks",
        "num_drafts",
        "num_forgotten",
        "num_in_flight",
        "num_loads",
        "num_placeholders",
        "num_prompt",
        "num_published",
        "num_stale",
        "num_tokens",
        "num_told",
        "num_unready",
        "outputs",
        "publish_at",
        "request",
        "request_id",
        "sent",
        "status",
        "stop_token_ids",
        "updates",
        "urgency",
        "was_preempted",
    )

    def __init__(self, request: Request, keys: RequestKeys, media_embeds: tuple[int, ...], max_model_len: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.features = request.mm_features
        self.keys = keys
        self.outputs = keys.outputs if isinstance(request.prompt, TokenPrompt) else None
        self.status = Status.WAITING
        self.num_prompt: int = request.prompt.num_tokens
        self.num_tokens: int = self.num_prompt
        self.asked_tokens = self.num_prompt + request.max_tokens
        self.end_tokens = min(self.asked_tokens, max_model_len)
        self.num_computed = self.num_placeholders = self.num_in_flight = self.num_stale = self.num_told = 0
        self.num_forgotten = 0
        self.num_drafts = 0
        self.drops_stale = self.is_prefill = False
        self.urgency = (request.priority, request.arrival_time, request.request_id)
        self.stop_token_ids = request.stop_token_ids
        self.updates: deque[StreamingUpdate | None] | None = deque() if request.resumable else None
        self.blocks: list[int] = []
        self.cross_blocks: tuple[int, ...] = ()
        self.num_cross_blocks = 0
        self.capacity = self.num_published = self.publish_at = 0
        self.num_loads, self.num_unready = request.kv_transfer.num_loads, request.kv_transfer.num_unready
        self.num_cached = self.last_step = 0
        self.was_preempted = False
        self.hit: list[int] = []
        self.hit_epoch = -1
        self.media_starts: tuple[int, ...] = ()
        self.media_ends: tuple[int, ...] = ()
        self.media_embeds = media_embeds
        self.last_media_end = 0
        if media_embeds:
            self._set_media(media_embeds)
        self.sent: Sequence[MediaFeature] = ()

    def __lt__(self, other: RequestState) -> bool:
        return self.urgency < other.urgency

    def _set_media(self, media_embeds: tuple[int, ...]) -> None:
        self.media_starts = tuple(feature.position.offset for feature in self.features)
        self.media_ends = tuple(feature.position.end for feature in self.features)
        self.media_embeds = media_embeds
        self.last_media_end = max(self.media_ends)

    def keep_tokens(self, num_kept: int) -> None:
        """Forget all known tokens of a turn that has ended but the first `num_kept`, which may be fewer than its prompt has."""
        self.keys.keep_outputs(self.num_tokens - self.num_prompt, max(0, num_kept - self.num_prompt))
        self.num_tokens = num_kept

    def take_input(
        self, update: StreamingUpdate, item_slots: Callable[[PlaceholderRange], int], max_model_len: int
    ) -> None:
        """Go on with a session's next input; what is kept of its turn is prompt from now on."""
        base = self.num_tokens
        if update.mm_features:
            self.features = (*self.features, *(feature.moved(base) for feature in update.mm_features))
            added = tuple(item_slots(feature.position) for feature in update.mm_features)
            self._set_media((*self.media_embeds, *added))
        prompt = self.keys.grow(base - self.num_prompt, update.prompt, self.features)
        self.request = replace(self.request, prompt=prompt, mm_features=self.features, arrival_time=update.arrival_time)
        self.num_forgotten = max(0, self.num_prompt + self.num_forgotten - base)
        self.num_prompt = self.num_tokens = prompt.num_tokens
        self.asked_tokens = self.num_prompt + self.num_forgotten + update.max_tokens
        self.end_tokens = min(self.num_prompt + update.max_tokens, max_model_len)
        self.urgency = (self.request.priority, update.arrival_time, self.request_id)
        self.stop_token_ids = update.stop_token_ids

    def clone(self, keys: RequestKeys) -> RequestState:
        """An independent copy on a copy of its keys."""
        other = object.__new__(RequestState)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.keys = keys
        other.outputs = None if self.outputs is None else keys.outputs
        other.blocks = list(self.blocks)
        other.hit = list(self.hit)
        other.updates = None if self.updates is None else deque(self.updates)
        return other
