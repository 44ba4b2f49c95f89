"""The section `fleet` of a scenario file."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.scenario.strict import MOST, Count, Instances, Ranks, Size, Strict, record_spec

SchedulerSpec = record_spec(SchedulerConfig, frozenset({"uses_mrope", "uses_xdrope", "ec_role"}))
Duration = Annotated[float, Field(gt=0, le=MOST)]
RouterName = Literal["round_robin", "least_loaded", "prefix_affinity", "media_affinity"]


class RenderPoolSpec(Strict):
    """Front-end processes.

    Attributes:
        count: Requests rendered at the same time.
        cache_gib: Size of the processor cache; 0 switches it off.
    """

    count: Instances = 1
    cache_gib: Size = 4.0


class EncodePoolSpec(Strict):
    """Encode-only instances.

    Attributes:
        count: Instances.
        max_batch_items: Items that one encoder run takes at most.
        front_ends: Processes of each instance that render what it is sent, which then is raw media; 0 where it is sent tensors.
        router: Which of them takes the next item; null for `fleet.router`.
    """

    count: Instances = 1
    max_batch_items: Count = 8
    front_ends: Annotated[int, Field(ge=0, le=10_000)] = 0
    router: RouterName | None = None


class EnginePoolSpec(Strict):
    """Engines that compute prompts or generate.

    Attributes:
        count: Instances.
        tp: Tensor-parallel ranks of each, a GPU each; left out where `costs.lm.tp` is stated, as many as that. They read its
            broadcast, share the model and are what an instance costs in a plan. The memory that they have together is for
            `scheduler.num_gpu_blocks` to say.
        lockstep: Whether all step together, each step as long as the longest of them: data-parallel ranks that are aligned.
        router: Which of them takes the next request; null for `fleet.router`.
        scheduler: Settings of each one's scheduler.
    """

    count: Instances = 1
    tp: Ranks = 1
    lockstep: bool = False
    router: RouterName | None = None
    scheduler: SchedulerSpec = SchedulerSpec()  # pyright: ignore[reportInvalidTypeForm]

    @model_validator(mode="after")
    def _check(self) -> Self:
        scheduler: SchedulerConfig = self.scheduler.build()
        if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < scheduler.max_model_len:
            raise ValueError(
                f"enable_chunked_prefill is off, and a prompt of more than max_num_batched_tokens "
                f"({scheduler.max_num_batched_tokens}) would wait for ever: set max_model_len "
                f"({scheduler.max_model_len}) to no more than that"
            )
        return self


class EcSpec(Strict):
    """How embeddings get from encoders to engines; the times are those of vLLM 0.32.

    Attributes:
        kind: `store`: one store that all write and read, where nothing is encoded twice; `pull`: an engine reads from the encoder
            that keeps the embedding, under a lease; `push`: the encoder writes to the engine that was chosen before.
        producer_embeds: Embeddings (tokens of media) that an encode instance keeps in host memory, of `pull` and `push`.
        consumer_embeds: Those that an engine keeps there, beside its encoder cache.
        wait_ms: How long an engine waits for an embedding at most.
        answer_ms: How long an engine waits for an encoder's answer before it asks again (`pull`).
        read_ms: How long a read may take (`pull`).
        lease_ms: How long an encoder keeps for an engine what it granted (`pull`).
        keep_ms: How long an engine keeps what was pushed to it and nobody asks for.
        max_encodes: How often a request has its items encoded at most, when embeddings cannot be had; 1 lets it fail at once.
    """

    kind: Literal["store", "pull", "push"] = "store"
    producer_embeds: Count = 1 << 18
    consumer_embeds: Count = 1 << 16
    wait_ms: Duration = 60_000.0
    answer_ms: Duration = 30_000.0
    read_ms: Duration = 20_000.0
    lease_ms: Duration = 30_000.0
    keep_ms: Duration = 300_000.0
    max_encodes: Count = 3


class FleetSpec(Strict):
    """What the fleet consists of.

    Attributes:
        topology: Which stages have instances of their own; `decode` and `encode` count only where they have.
        dialect: Whose rules: the ideal, or a release such as `vllm-0.32`.
        orchestrator: Who sends which leg where: `per_item` has each item of a request encoded by a leg of its own (llm-d's
            coordinator); `batched` lets the pictures that go to one encoder share a leg (vLLM's example proxy); `push` chooses
            the engine that computes the prompt before encode, so that embeddings are pushed to it (Mooncake); `decode_first`
            calls the engine that generates first, and prefill pushes the KV cache into its blocks layer by layer (vLLM-Ascend).
        max_leg_items: Pictures that share an encode leg of `batched` at most; null for no limit.
        router: Which instance of a pool takes the next leg: one after the other, the one with the fewest legs under way, or the one
            that was sent the longest beginning of the prompt (`prefix_affinity`) or most of the items (`media_affinity`) before.
        router_stale_ms: How far behind the memory of `media_affinity` is: what was sent since then it does not know.
        prefill_payload: What stands for media on the way to prefill once encode has them: tensors, metadata only, or raw media.
        ec: How embeddings get from encoders to engines.
        ec_capacity_gib: Of the store of embeddings (`ec.kind: store`); null for no limit.
        render: Front end.
        encode: Encode instances.
        prefill: Engines that compute prompts, and generate where nothing else does.
        decode: Engines that generate.
    """

    topology: Literal["aggregated", "p+d", "e+pd", "e+p+d"] = "aggregated"
    dialect: str = "ideal"
    orchestrator: Literal["per_item", "batched", "push", "decode_first"] = "per_item"
    max_leg_items: Count | None = None
    router: RouterName = "round_robin"
    router_stale_ms: Size = 0.0
    prefill_payload: Literal["full", "metadata", "deferred"] = "metadata"
    ec: EcSpec = EcSpec()
    ec_capacity_gib: Annotated[float, Field(gt=0)] | None = None
    render: RenderPoolSpec = RenderPoolSpec()
    encode: EncodePoolSpec = EncodePoolSpec()
    prefill: EnginePoolSpec = EnginePoolSpec()
    decode: EnginePoolSpec = EnginePoolSpec()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for orchestrator, pool, mark in (("decode_first", "decode", "p+d"), ("push", "encode", "e+")):
            if self.orchestrator == orchestrator and mark not in self.topology:
                raise ValueError(f"orchestrator {orchestrator} needs {pool} instances, and topology is {self.topology}")
        if (self.orchestrator == "push") != (self.ec.kind == "push"):
            raise ValueError(
                f"orchestrator {self.orchestrator} and ec.kind {self.ec.kind}: set both to push, or neither"
            )
        if self.ec_capacity_gib is not None and self.ec.kind != "store":
            raise ValueError(
                f"ec_capacity_gib is that of a store, and ec.kind is {self.ec.kind}: set ec.producer_embeds"
            )
        return self
