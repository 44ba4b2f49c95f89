"""The request as an engine admits it."""

from __future__ import annotations

from collections.abc import Mapping

from epdsim.core.items import MediaFeature
from epdsim.core.prompt import Prompt
from epdsim.core.records import record

WARM_UP = "warm-up"
"""Service class of requests that fill caches: served, counted in the books, and left out of every figure."""


@record
class EcOffer:
    """What `ec_transfer_params` say of one item: where its embedding is, or by which name it will come.

    Attributes:
        peer: Who serves it (pull), None where the producer had nothing to serve; in a producer's request, whom to push it to.
        num_embeds: Embeddings that it has, as announced.
        transfer_id: Name of the transfer that brings it (push).
    """

    peer: str | None = None
    num_embeds: int = 0
    transfer_id: str | None = None


@record
class KvTransfer:
    """What an engine's KV connector does about a request; by default it loads remote tokens once, within the step that admits it.

    Attributes:
        loads_async: Remote tokens are loaded between steps, while the request waits and holds the blocks for them.
        num_unready: Look-ups that are answered with "not yet" before one is answered with tokens.
        num_loads: Admissions at which the tokens can be loaded: 1 for a hand-over, more for a store.
        sends: When the request has its tokens, its blocks are held until they are reported as sent.
    """

    loads_async: bool = False
    num_unready: int = 0
    num_loads: int = 1
    sends: bool = False


WITHIN_STEP = KvTransfer()
"""Remote tokens are there when the request is admitted."""


@record
class Request:
    """What one engine (encode, prefill or decode) is asked to do.

    Its life: waiting, running, possibly preempted and waiting again, finished.

    Attributes:
        request_id: Unique in the engine.
        prompt: Its tokens, placeholders included.
        max_tokens: Output tokens after which it ends; workloads state the true length or the tokens that end it.
        mm_features: Its media items in order of offset.
        priority: Smaller is more urgent (policy `priority` only).
        arrival_time: Tie-break of the priority order, in any unit.
        cache_salt: Part of every block key; None for none.
        adapter: Name of the adapter (LoRA), part of every block key; None for none.
        num_remote_tokens: Leading prompt tokens whose KV cache another engine hands over; counted as computed at admission.
        kv_transfer: How they come, and whether its own KV cache goes to another engine.
        remote_embeds: Identifiers whose embeddings are known to stand in a shared EC store, to be loaded instead of encoded.
        ec_offers: Embeddings that are to come over an EC connector that pulls or pushes, by identifier; None for none.
        stop_token_ids: Output tokens that end it, itself included, before `max_tokens`; only for prompts with ids.
        resumable: Whether it is a streaming session: when it has its output it waits for a `StreamingUpdate`.
    """

    request_id: str
    prompt: Prompt
    max_tokens: int
    mm_features: tuple[MediaFeature, ...] = ()
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    adapter: str | None = None
    num_remote_tokens: int = 0
    kv_transfer: KvTransfer = WITHIN_STEP
    remote_embeds: frozenset[str] = frozenset()
    ec_offers: Mapping[str, EcOffer] | None = None
    stop_token_ids: frozenset[int] = frozenset()
    resumable: bool = False


@record
class StreamingUpdate:
    """The next input of a streaming session.

    The session goes on with all that it has computed: prompt and output so far without the last output token, then this.

    Attributes:
        request_id: Of the session.
        prompt: Further tokens, at least one; of the kind of the session's prompt.
        max_tokens: Output tokens of this turn.
        mm_features: Further items; their offsets count from the first token of this update.
        arrival_time: From now on the session's tie-break of the priority order.
        stop_token_ids: As in `Request`, for this turn.
    """

    request_id: str
    prompt: Prompt
    max_tokens: int
    mm_features: tuple[MediaFeature, ...] = ()
    arrival_time: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
