"""The events: what happened, where and when, whoever made it happen.

An event is a small typed record. A simulated fleet, a replay, a recorded system, a real scheduler all speak in these, so that one
monitor, one metric or one timeline reads all of them. Written as NDJSON, one event a line, each with its `kind`. Here are the
events of a fleet; what goes wrong in it is in `epdsim.events.faults`, what one engine tells of its steps in `epdsim.events.engine`,
what the protocol's functions did in `epdsim.events.protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from epdsim.events.base import Event
from epdsim.events.caches import MediaCachesSeen, MediaHandedOver, RingRead, RingSeen, RingSent
from epdsim.events.engine import (
    CacheReset,
    EncoderFed,
    EngineDied,
    EngineStarted,
    EngineStopped,
    Gathered,
    InputQueued,
    PayloadsSent,
    RequestAborted,
    RequestQueued,
    RequestRefused,
    StepYielded,
)
from epdsim.events.faults import EcEvicted, InstanceBack, InstanceLost, LegRecovered, LegRetried
from epdsim.events.identity import BlocksKeyed, MediaHashed, SessionSeen
from epdsim.events.positions import PositionsComputed
from epdsim.events.protocol import (
    FeaturesStripped,
    ItemsMerged,
    MetadataWeighed,
    PlanReceived,
    RequestChecked,
    TablesRendered,
)


class FleetStarted(Event, frozen=True):
    """A fleet begins.

    Attributes:
        topology: Which stages have instances of their own.
        router: Which instance of a pool takes the next request.
        pools: By leg, the names of the instances that take it.
        max_batch_items: Items that one encoder run takes at most; 0 without encode instances.
        routers: By leg, for pools that have a router of their own.
        detect_ms: From a loss of an instance until the fleet knows.
        give_up_ms: How long a request waits where all instances of a pool are lost, or for embeddings that do not come.
        faults_end_ms: When the last slow or cut link and the last slow encoder are as always again.
    """

    is_detail: ClassVar[bool] = True

    topology: str
    router: str
    pools: Mapping[str, Sequence[str]]
    max_batch_items: int = 0
    routers: Mapping[str, str] = {}
    detect_ms: float = 0.0
    give_up_ms: float = 0.0
    faults_end_ms: float = 0.0


class RequestArrived(Event, frozen=True):
    """A client's request reaches the system.

    Attributes:
        output_tokens: Tokens that it asks for.
        slo_class: Service class, `"warm-up"` for requests that are served but not measured.
    """

    request_id: str
    output_tokens: int
    slo_class: str = ""


class Rendered(Event, frozen=True):
    """A chat became tokens, placeholders and tensors.

    Attributes:
        mm_hashes: Content hash of each item, in prompt order.
        num_media_tokens: Placeholder tokens in all.
        cache_hits: Items whose processing the processor cache spared.
        payload_bytes: Raw tensor bytes of all items.
        duration_ms: Time that a front-end process worked on it.
    """

    request_id: str
    num_prompt_tokens: int
    num_media_tokens: int = 0
    mm_hashes: Sequence[str] = ()
    cache_hits: int = 0
    payload_bytes: int = 0
    duration_ms: float = 0.0


class LegSent(Event, frozen=True):
    """The orchestrator sends one leg of a request.

    Attributes:
        leg: `"encode"`, `"prefill"`, `"decode"` or `"aggregated"`.
        to: The instance chosen.
        body_bytes: Size of the HTTP body.
        payload: What stands for media in it: `"full"`, `"metadata"`, `"deferred"` (raw) or `"none"`.
        body_bytes_by_payload: For a leg with media: what the body would weigh under each choice, the one taken included.
    """

    request_id: str
    leg: str
    to: str
    body_bytes: int
    payload: str = "none"
    body_bytes_by_payload: Mapping[str, int] = {}


class InstanceChosen(Event, frozen=True):
    """The orchestrator has chosen who takes a leg that it sends later, or an item of a leg that several share.

    Attributes:
        leg: As in `LegSent`.
        to: The instance chosen.
    """

    is_detail: ClassVar[bool] = True

    request_id: str
    leg: str
    to: str


class EncodeSpared(Event, frozen=True):
    """An encode instance had the embeddings of items that it was sent, and need not run its encoder."""

    request_id: str
    mm_hashes: Sequence[str]


class EncodeFinished(Event, frozen=True):
    """An encode instance has run its encoder on items and published their embeddings."""

    request_id: str
    mm_hashes: Sequence[str]
    embedding_bytes: int


class EncodeRunFinished(Event, frozen=True):
    """An encode instance has run its encoder once, on what waited for it.

    Attributes:
        num_items: Items in the run.
        num_waiting: Items that wait after it.
        duration_ms: From start to result.
    """

    num_items: int
    num_waiting: int
    duration_ms: float


class EcLoaded(Event, frozen=True):
    """An engine pulled an embedding out of the EC store."""

    mm_hash: str
    embedding_bytes: int


class Admitted(Event, frozen=True):
    """A request enters the running set, at first or again.

    Attributes:
        num_computed_tokens: Tokens that need no computing: prefix hit, and what another engine handed over.
        payloads: Per item, what the workers were sent: `"full"`, `"metadata"`, `"empty"`, `"address"` or `"none"`; no entries when
            they were sent no items and keep what they have.
        block_ids: KV blocks of its table, where an engine tells them.
    """

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    num_remote_tokens: int = 0
    payloads: Sequence[str] = ()
    resumed: bool = False
    block_ids: Sequence[int] = ()


class Preempted(Event, frozen=True):
    """A running request lost its blocks and waits again."""

    request_id: str


class StepFinished(Event, frozen=True):
    """One step of an engine, planned, broadcast and computed; or several alike that decided nothing, told as one.

    Attributes:
        step: Its number; of several, the first one's.
        num_tokens: Tokens computed.
        num_requests: Requests in it.
        num_running: Running requests after it.
        num_waiting: Waiting requests after it.
        duration_ms: From plan to result.
        broadcast_ms: Part of it: serialising and delivering the plan to the ranks.
        encode_ms: Part of it: the encoder, where it runs in the engine.
        broadcast_bytes: What the plan weighs, each unique tensor once.
        broadcast_bytes_unstripped: What the same plan would weigh without strip.
        free_blocks: KV blocks free after it.
        num_steps: Steps told by this event; all figures are their sums.
    """

    step: int
    num_tokens: int
    num_requests: int
    num_running: int
    num_waiting: int
    duration_ms: float
    broadcast_ms: float = 0.0
    encode_ms: float = 0.0
    broadcast_bytes: int = 0
    broadcast_bytes_unstripped: int = 0
    free_blocks: int = 0
    num_steps: int = 1


class StepPlanned(Event, frozen=True):
    """The decisions of a step in full; what it admits and preempts is told just before it.

    Several steps that decided nothing may be told as one, at the end of the last of them.

    Attributes:
        num_scheduled_tokens: Tokens to compute, by request in scheduling order.
        scheduled_encoder_inputs: Items to encode, by request.
        ec_loads: Identifiers to load from the EC store.
        free_encoder_mm_hashes: Identifiers that workers drop, before they load, encode and gather.
        num_computed_tokens: By request, the tokens computed before the step; where an engine tells them.
        new_block_ids: By request, the KV blocks added to its table; likewise.
        finished: Ids of which workers hear that they ended.
        num_steps: Steps told by this event, `step` being the first; tokens are their sums.
    """

    is_detail: ClassVar[bool] = True

    step: int
    num_scheduled_tokens: Mapping[str, int]
    scheduled_encoder_inputs: Mapping[str, Sequence[int]] = {}
    ec_loads: Sequence[str] = ()
    free_encoder_mm_hashes: Sequence[str] = ()
    num_computed_tokens: Mapping[str, int] = {}
    new_block_ids: Mapping[str, Sequence[int]] = {}
    finished: Sequence[str] = ()
    num_steps: int = 1


class KvTransferred(Event, frozen=True):
    """A prefill instance's KV cache has arrived at the decode instance."""

    request_id: str
    source: str
    kv_bytes: int


class PromptComputed(Event, frozen=True):
    """A prefill engine has computed a prompt whose KV cache another engine will take."""

    is_detail: ClassVar[bool] = True

    request_id: str


class LinkUsed(Event, frozen=True):
    """A transfer is sent over a link that is shared, or at times slow.

    Attributes:
        begins_ms: When its first byte goes.
        ends_ms: When its last byte is there.
        bytes_per_s: What the link can do.
        is_alone: Whether transfers over this link go one after the other.
        is_fair: Whether they share its bandwidth; told when the last byte has gone, else when the first one may.
    """

    is_detail: ClassVar[bool] = True

    sent_bytes: int
    begins_ms: float
    ends_ms: float
    bytes_per_s: float
    is_alone: bool
    is_fair: bool = False


class FirstToken(Event, frozen=True):
    """The client sees its first token."""

    request_id: str


class RequestFinished(Event, frozen=True):
    """The last token is out."""

    request_id: str
    output_tokens: int


class RequestFailed(Event, frozen=True):
    """The request ended without its tokens.

    Attributes:
        reason: One sentence.
        refused: True when it was turned away before any work was done.
        stuck: True when it would have waited for ever: the run ends, and nothing is left that could move it.
        aborted: True when its client has left.
        output_tokens: Tokens that had been generated for it then.
    """

    request_id: str
    reason: str
    refused: bool = False
    stuck: bool = False
    aborted: bool = False
    output_tokens: int = 0


AnyEvent = (
    FleetStarted
    | RequestArrived
    | Rendered
    | LegSent
    | InstanceChosen
    | EncodeSpared
    | EncodeFinished
    | EncodeRunFinished
    | EcLoaded
    | Admitted
    | Preempted
    | StepFinished
    | StepPlanned
    | KvTransferred
    | PromptComputed
    | LinkUsed
    | InstanceLost
    | InstanceBack
    | EcEvicted
    | LegRetried
    | LegRecovered
    | FirstToken
    | RequestFinished
    | RequestFailed
    | EngineStarted
    | RequestQueued
    | RequestAborted
    | CacheReset
    | PayloadsSent
    | EncoderFed
    | Gathered
    | InputQueued
    | StepYielded
    | EngineDied
    | EngineStopped
    | TablesRendered
    | RequestChecked
    | ItemsMerged
    | FeaturesStripped
    | MediaHandedOver
    | MediaCachesSeen
    | RingSent
    | RingRead
    | RingSeen
    | PositionsComputed
    | MediaHashed
    | BlocksKeyed
    | SessionSeen
    | MetadataWeighed
    | RequestRefused
    | PlanReceived
)
"""Every kind of event; what a reader decodes into."""
