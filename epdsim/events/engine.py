"""What one engine tells of its steps, beside the events that a fleet has too (`Admitted`, `Preempted`, `StepPlanned`).

In the order of a step: what arrives, leaves or is reset; `Preempted`; `Admitted`; `PayloadsSent`; `StepPlanned`; `EncoderFed`;
`Gathered`; `StepYielded`; `RequestFinished`. A system that does not tell an event leaves those properties undecided that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epdsim.events.base import Event


class EngineStarted(Event, frozen=True):
    """An engine begins, with nothing in its caches.

    Attributes:
        system: Whose scheduler it is, for example `"vllm 0.32.0"`.
        reads_position_fields: Whether workers compute positions from fields of all items (M-RoPE, XD-RoPE).
        model_runner: `"v1"` keeps what it was sent at the first admission, `"v2"` is sent a resumed request anew.
        encoder_cache_size: Embeddings that the encoder cache holds.
        num_gpu_blocks: KV blocks, the null block among them; 0 when it is not told.
        beyond: What befalls it that its events do not tell in full, for example `"sessions"`; only properties that cope with
            all of it are judged.
        sends_late: Whether a payload comes only with the step that encodes its item.
        max_model_len: Tokens of the longest sequence; 0 when it is not told.
        long_prefill_token_threshold: Tokens that a step computes of one prompt at most, among others; 0 for no such bound.
        has_workers: Whether workers take its steps, and what they are fed and gather is told.
    """

    is_detail: ClassVar[bool] = True

    system: str
    block_size: int
    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    encoder_cache_size: int
    max_num_encoder_input_tokens: int
    model_runner: str = "v1"
    policy: str = "fcfs"
    async_scheduling: bool = False
    reads_position_fields: bool = False
    disable_chunked_mm_input: bool = False
    ec_role: str = "none"
    beyond: Sequence[str] = ()
    has_workers: bool = False
    sends_late: bool = False
    max_model_len: int = 0
    long_prefill_token_threshold: int = 0


class ItemInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One media item of a queued request.

    Attributes:
        is_embed: One entry per token of the span, 1 where an embedding goes; None for everywhere.
        has_position_fields: Whether positions read fields of it.
        payload: What the request itself carries of it, as in `Admitted`; `"metadata"` where embeddings come from elsewhere.
    """

    modality: str
    identifier: str
    offset: int
    length: int
    is_embed: Sequence[int] | None = None
    has_position_fields: bool = False
    payload: str = "full"

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.offset + self.length

    @property
    def num_embeds(self) -> int:
        """Embeddings that the span takes."""
        return self.length if self.is_embed is None else sum(self.is_embed)

    def takes_embeds(self, start: int, end: int) -> bool:
        """Whether an embedding of the item falls on a prompt token in `[start, end)`."""
        low, high = max(start, self.offset), min(end, self.end)
        return low < high and (self.is_embed is None or any(self.is_embed[low - self.offset : high - self.offset]))


class RequestQueued(Event, frozen=True):
    """A request is added to an engine.

    Attributes:
        max_tokens: Output tokens that it asks for.
        items: Its media, in order of offset.
        prompt_token_ids: Its prompt, where content is told; empty where only lengths matter.
        num_remote_tokens: Leading tokens whose KV cache another engine hands over at its first admission.
        awaits_kv: Whether they are still to come, and it waits for them with its blocks.
        num_delivered_tokens: Last tokens of the prompt that are output which the client has, of an engine that was lost.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    items: Sequence[ItemInfo] = ()
    prompt_token_ids: Sequence[int] = ()
    cache_salt: str | None = None
    adapter: str | None = None
    num_remote_tokens: int = 0
    num_delivered_tokens: int = 0
    awaits_kv: bool = False


class RequestRefused(Event, frozen=True):
    """The front end of an engine does not let a request in.

    Attributes:
        max_tokens: Output tokens that it asks for.
        items: Its media, in order of offset.
        reason: One sentence.
        is_too_large: Whether that is that it needs more of something than the engine has; not so for whatever else a front end
            refuses, for example an adapter that is not loaded.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    items: Sequence[ItemInfo] = ()
    reason: str = ""
    is_too_large: bool = False


class InputQueued(Event, frozen=True):
    """A streaming session is given its next input, or word that there is none (no tokens).

    Attributes:
        max_tokens: Output tokens of its next turn.
        items: The input's media; offsets count from its first token.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    num_prompt_tokens: int
    max_tokens: int = 0
    items: Sequence[ItemInfo] = ()
    prompt_token_ids: Sequence[int] = ()


class RequestAborted(Event, frozen=True):
    """A request is taken out of an engine before its end, as when its client leaves; it may have ended before."""

    is_detail: ClassVar[bool] = True

    request_id: str


class CacheReset(Event, frozen=True):
    """A cache is told to forget everything: `"prefix"`, `"encoder"` or `"media"`."""

    is_detail: ClassVar[bool] = True

    which: str


class PayloadsSent(Event, frozen=True):
    """Workers are sent payloads for items of a request that they know already, by item index; words as in `Admitted`."""

    is_detail: ClassVar[bool] = True

    request_id: str
    payloads: Mapping[int, str]


class EncoderFed(Event, frozen=True):
    """A worker's encoder is to run on an item, of which the worker holds what `payload` says, in the words of `Admitted`."""

    is_detail: ClassVar[bool] = True

    request_id: str
    index: int
    payload: str


class Gathered(Event, frozen=True):
    """A worker reads embeddings of an item for the tokens `[start, end)` of the prompt.

    Attributes:
        index: The item's, in its request.
        is_resident: Whether its encoder cache held the embeddings.
        places: Tokens of the prompt that take one, where that is told.
        rows: The row of the entry that each of them takes.
        is_own: Whether the entry was made of that item, as far as anybody can tell.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    index: int
    start: int
    end: int
    is_resident: bool
    places: Sequence[int] = ()
    rows: Sequence[int] = ()
    is_own: bool = True


class StepYielded(Event, frozen=True):
    """A step has been computed.

    Attributes:
        tokens: Sampled tokens by request, none for a request that has not reached the end of its known tokens.
        running: Ids that run after it, in scheduling order; with async scheduling as they stand once the step is planned.
        waiting: Ids that wait after it.
        free_blocks: KV blocks that nobody holds after it.
    """

    is_detail: ClassVar[bool] = True

    step: int
    tokens: Mapping[str, Sequence[int]]
    running: Sequence[str]
    waiting: Sequence[str]
    free_blocks: int


class EngineDied(Event, frozen=True):
    """The engine failed with an exception, and with it everything that it was serving."""

    is_detail: ClassVar[bool] = True

    reason: str


class EngineStopped(Event, frozen=True):
    """Nothing more is to come, and the engine was given the time to finish.

    Attributes:
        unfinished: Ids that are still alive.
    """

    is_detail: ClassVar[bool] = True

    unfinished: Sequence[str] = ()
