"""What a fleet consists of, as plain records; scenario files are turned into these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.encode import EncodeCost
from epdsim.cost.link import Link
from epdsim.cost.lm import LmCost
from epdsim.cost.render import RenderCost
from epdsim.fleet.faults import Faults

if TYPE_CHECKING:
    from epdsim.core.legs import PrefillMode

TOPOLOGIES = ("aggregated", "p+d", "e+pd", "e+p+d")
PREFILL_PAYLOADS: tuple[PrefillMode, ...] = ("full", "metadata", "deferred")
"""What may stand for media on the way to prefill; see `prefill_leg`."""
Sharing = Literal["none", "instance", "fleet", "fair-instance", "fair-fleet"]
LOOKS_AGAIN_MS = 100.0
"""How often an idle engine looks whether an embedding that it waits for is late."""
LONGEST_STRIDE = 64
"""Steps that an engine looks ahead at most: an arrival makes the rest of the look-ahead worthless."""


@record
class LinkSharing:
    """Which transfers wait for each other: none, those to one instance, or all; with `fair-` they share the bandwidth instead.

    Attributes:
        body: Request bodies, from the orchestrator.
        ec: Embeddings, to engines; those that one step of an engine loads come one after the other in any case.
        kv: KV caches, to decode engines.
    """

    body: Sharing = "none"
    ec: Sharing = "none"
    kv: Sharing = "instance"


@record
class EnginePool:
    """A pool of equal engines that compute prompts or generate.

    Attributes:
        count: Instances.
        scheduler: Configuration of each one's scheduler.
        tp: Tensor-parallel ranks of each, the readers of its broadcast.
        lm: How long its steps take.
        lockstep: Whether they all step together, see `Lockstep`.
        router: Which of them takes the next request; None for the fleet's.
    """

    count: int
    scheduler: SchedulerConfig
    tp: int
    lm: LmCost
    lockstep: bool = False
    router: str | None = None


@record
class EncodePool:
    """A pool of encode-only instances.

    Attributes:
        count: Instances.
        max_batch_items: Items that one encoder run takes at most.
        front_ends: Processes of each instance that render what it is sent, which then are files (as by vLLM's example EPD proxy); 0
            where it is sent tensors.
        router: Which of them takes the next item; None for the fleet's.
    """

    count: int
    max_batch_items: int = 8
    front_ends: int = 0
    router: str | None = None


@record
class RenderPool:
    """Front-end processes that render.

    Attributes:
        count: Requests rendered at the same time.
        cache_bytes: Byte budget of the processor cache (vLLM's `mm_processor_cache_gb`); 0 switches it off.
    """

    count: int = 1
    cache_bytes: int = 4 << 30


@record
class FleetCosts:
    """How long everything but an engine's step takes.

    Attributes:
        render: Front end, per request and per item.
        encode: Encoder runs, on encode instances and in engines that encode themselves.
        broadcast: Plan to tensor-parallel ranks.
        hop_ms: What a call to an instance costs beside its work: HTTP, its server's event loop, the way to its engine and back.
        body_link: What request bodies travel on.
        ec_link: What embeddings travel on.
        kv_link: What KV caches travel on.
        kv_bytes_per_token: Of the language model.
        kv_layers: Its layers, of which the KV cache is pushed one by one while a prompt is computed; 1 for all at its end.
        sharing: Which transfers over these links wait for each other.
        encode_render: Front ends of encode instances, per leg and per item; None where they cost what `render` does.
    """

    render: RenderCost
    encode: EncodeCost
    broadcast: BroadcastProfile
    hop_ms: float
    body_link: Link
    ec_link: Link
    kv_link: Link
    kv_bytes_per_token: int
    sharing: LinkSharing = LinkSharing()
    encode_render: RenderCost | None = None
    kv_layers: int = 1


@record
class EcConfig:
    """How embeddings get from encoders to engines.

    Attributes:
        kind: `"store"`, `"pull"` or `"push"`, see `epdsim.fleet.ec`.
        producer_embeds: Embeddings that an encode instance keeps in host memory (pull, push).
        consumer_embeds: Embeddings that an engine keeps there, beside its encoder cache.
        wait_ms: How long an engine waits for an embedding at most; vLLM 0.32's, as all of these.
        answer_ms: How long an engine waits for an encoder's answer before it asks again (pull).
        read_ms: How long a read may take (pull).
        lease_ms: How long an encoder keeps what it granted (pull).
        keep_ms: How long an engine keeps what was pushed to it until somebody wants it.
        max_encodes: How often the items of a request are encoded at most, when embeddings cannot be had.
    """

    kind: str = "store"
    producer_embeds: int = 1 << 18
    consumer_embeds: int = 1 << 16
    wait_ms: float = 60_000.0
    answer_ms: float = 30_000.0
    read_ms: float = 20_000.0
    lease_ms: float = 30_000.0
    keep_ms: float = 300_000.0
    max_encodes: int = 3

    @property
    def patience_ms(self) -> float:
        """How long a request can wait in all for embeddings that do not come; what is in a store is there."""
        return 0.0 if self.kind == "store" else self.max_encodes * (self.wait_ms + LOOKS_AGAIN_MS)


@record
class FleetConfig:
    """A whole fleet.

    Attributes:
        topology: One of `TOPOLOGIES`: which stages have instances of their own.
        prefill: The engines that compute prompts (and generate, unless there is a decode pool).
        decode: The engines that generate; None when prefill does.
        encode: The encode instances; None when prefill encodes.
        orchestrator: How its orchestrator works, one of `epdsim.fleet.ORCHESTRATORS`.
        max_leg_items: Pictures that share an encode leg at most, where the orchestrator batches; None for no limit.
        prefill_payload: What stands for media on the way to prefill, once encode has them: full tensors, metadata only (vLLM issue
            54658), or deferred: the raw media, rendered again by the worker (vLLM issue 46722).
        router: Which instance of a pool takes the next leg, one of `ROUTERS`.
        router_stale_ms: How far behind the memory of a `media_affinity` router is.
        ec: How embeddings get from encoders to engines.
        ec_capacity_bytes: Of the EC store; None for no limit.
        dialect: The rules in force.
        faults: What goes wrong; None for nothing.
    """

    topology: str
    render: RenderPool
    prefill: EnginePool
    decode: EnginePool | None
    encode: EncodePool | None
    costs: FleetCosts
    orchestrator: str = "per_item"
    max_leg_items: int | None = None
    prefill_payload: str = "metadata"
    router: str = "round_robin"
    router_stale_ms: float = 0.0
    ec: EcConfig = EcConfig()
    ec_capacity_bytes: int | None = None
    dialect: Dialect = IDEAL
    faults: Faults | None = None

    @property
    def max_retries(self) -> int:
        """How often what was lost with an instance is sent again."""
        return self.faults.max_retries if self.faults is not None else 0

    def router_of(self, pool: EnginePool | EncodePool | None) -> str:
        """The router of a pool."""
        return (pool.router if pool is not None else None) or self.router
