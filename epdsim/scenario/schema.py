"""The form of a scenario file."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import Field, create_model, model_validator

from epdsim.core.errors import InputError
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.spec import EncodeCostSpec, LinkSpec, LmCostSpec, RenderCostSpec
from epdsim.scenario.faults_schema import FaultsSpec
from epdsim.scenario.strict import AxisValue, Count, Instances, Ranks, Size, Strict
from epdsim.workload import WorkloadSpec


class RecordSpec(Strict):
    """A plain dataclass as a section of the file; `build` makes the dataclass."""

    record: ClassVar[type[Any]]

    def build(self, **more: object) -> Any:
        """The dataclass, with the values that the file does not choose."""
        return self.record(**self.model_dump(), **more)

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.build()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self


def _record_spec(record: type[Any], without: frozenset[str] = frozenset()) -> type[RecordSpec]:
    """A section with the fields and defaults of a dataclass, save those that other parts of the file decide."""
    hints = get_type_hints(record)
    shape: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is MISSING else one.default)
        for one in fields(record)
        if one.name not in without
    }
    made = create_model(f"{record.__name__}Spec", __base__=RecordSpec, __doc__=record.__doc__, **shape)
    made.record = record
    return made


SchedulerSpec = _record_spec(SchedulerConfig, frozenset({"uses_mrope", "uses_xdrope", "ec_role"}))
BroadcastSpec = _record_spec(BroadcastProfile)

MOST_RATES = 100_000
"""Of a search for goodput."""


Duration = Annotated[float, Field(gt=0)]
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
        tp: Tensor-parallel ranks of each, the readers of its broadcast.
        lockstep: Whether all step together, each step as long as the longest of them: data-parallel ranks that are aligned.
        router: Which of them takes the next request; null for `fleet.router`.
        scheduler: Settings of each one's scheduler.
    """

    count: Instances = 1
    tp: Ranks = 1
    lockstep: bool = False
    router: RouterName | None = None
    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec)  # pyright: ignore[reportInvalidTypeForm]


class EcSpec(Strict):
    """How embeddings get from encoders to engines; the times are those of vLLM 0.32.

    Attributes:
        kind: `store`: one store that all write and read, and nothing is encoded twice; `pull`: an engine reads from the encoder that
            keeps the embedding, under a lease; `push`: the encoder writes to the engine that was chosen before (`orchestrator: push`).
        producer_embeds: Embeddings (tokens of media) that an encode instance keeps in host memory, of `pull` and `push`.
        consumer_embeds: Those that an engine keeps there, beside its encoder cache.
        wait_ms: How long an engine waits for an embedding at most.
        read_ms: How long a read may take (`pull`).
        lease_ms: How long an encoder keeps for an engine what it granted (`pull`).
        keep_ms: How long an engine keeps what was pushed to it and nobody asks for.
        max_encodes: How often a request has its items encoded at most, when embeddings cannot be had; 1 lets it fail at once.
    """

    kind: Literal["store", "pull", "push"] = "store"
    producer_embeds: Count = 1 << 18
    consumer_embeds: Count = 1 << 16
    wait_ms: Duration = 60_000.0
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
    ec: EcSpec = Field(default_factory=EcSpec)
    ec_capacity_gib: Annotated[float, Field(gt=0)] | None = None
    render: RenderPoolSpec = Field(default_factory=RenderPoolSpec)
    encode: EncodePoolSpec = Field(default_factory=EncodePoolSpec)
    prefill: EnginePoolSpec = Field(default_factory=EnginePoolSpec)
    decode: EnginePoolSpec = Field(default_factory=EnginePoolSpec)

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


class CostsSpec(Strict):
    """How long things take; each constant says where it comes from in a comment of the file.

    Attributes:
        lm: Steps of the language model.
        decode_lm: Those of decode engines where they differ.
        encode: Encoder runs, on encode instances and in engines that encode themselves.
        render: Front end.
        encode_render: Front ends of encode instances, per leg and per item; by default they cost what `render` does.
        broadcast: From the plan of a step to the ranks.
        hop_ms: One HTTP hop between orchestrator and instance.
        body_link: What request bodies travel on.
        ec_link: What embeddings travel on.
        kv_link: What KV caches travel on.
        kv_bytes_per_token: Of the language model.
        kv_layers: Its layers, whose KV cache `decode_first` pushes one by one while a prompt is computed; 1 for all at its end.
    """

    lm: LmCostSpec
    decode_lm: LmCostSpec | None = None
    encode: EncodeCostSpec
    render: RenderCostSpec
    encode_render: RenderCostSpec | None = None
    broadcast: BroadcastSpec = Field(default_factory=BroadcastSpec)  # pyright: ignore[reportInvalidTypeForm]
    hop_ms: Size = 0.5
    body_link: LinkSpec
    ec_link: LinkSpec
    kv_link: LinkSpec
    kv_bytes_per_token: Annotated[int, Field(ge=0)]
    kv_layers: Count = 1


class FitParameter(Strict):
    """One constant to choose.

    Attributes:
        start: Where the search starts; the constant stays positive.
        sets: Dotted keys that take the constant times a factor: constants that the model ties to each other.
    """

    start: Annotated[float, Field(gt=0)]
    sets: dict[str, float] = Field(min_length=1)


class FitSpec(Strict):
    """Constants to choose so that some published points are met; every other point is a prediction.

    Attributes:
        metric: What is fitted.
        parameters: By name.
        where: Which published points are used: axis and the values that take part.
    """

    metric: str
    parameters: dict[str, FitParameter] = Field(min_length=1)
    where: dict[str, list[AxisValue]]


class PoolBounds(Strict):
    """How many instances a pool may have.

    Attributes:
        low: At least.
        high: At most.
        gpus: Of each instance: what it costs.
    """

    low: Count = 1
    high: Instances
    gpus: Annotated[float, Field(gt=0)] = 1.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, more than high, which is {self.high}")
        return self


class PlanSpec(Strict):
    """What `epdsim plan` may change to meet the service level.

    Attributes:
        pools: Dotted keys of numbers of instances, with their bounds.
        stretch_s: Traffic of at least four times this long is searched on the busiest stretch of this length first; null searches
            on all of it.
        check: Settings under which the answer is run once more with `--check`: a longer stretch of the traffic, say.
        what_if: Settings by name under which the answer is run with `--curves`: what is uncertain, another value of a cost, say.
    """

    pools: dict[str, PoolBounds] = Field(min_length=1)
    stretch_s: Annotated[float, Field(gt=0)] | None = 300.0
    check: dict[str, Any] = Field(default_factory=dict)
    what_if: dict[str, dict[str, Any]] = Field(default_factory=dict)


class GoodputSpec(Strict):
    """A search for the highest offered rate that meets the service level, at points whose axes leave the rate open.

    Attributes:
        key: Dotted key of the rate.
        low: Lowest rate to try, in the key's unit.
        high: Highest; a goodput of this much may be more.
        step: Between rates that are told apart.
    """

    key: str
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]
    step: Annotated[float, Field(gt=0)] = 1.0

    @property
    def rates(self) -> list[float]:
        """From `low` by `step` to `high`."""
        # A hair more, so that steps of a tenth reach the end.
        return [self.low + index * self.step for index in range(int((self.high - self.low) / self.step + 1e-9) + 1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, more than high, which is {self.high:g}")
        if (self.high - self.low) / self.step > MOST_RATES:
            raise ValueError(f"more than {MOST_RATES:,} rates lie between low and high: raise step")
        return self


class PublishedSpec(Strict):
    """One published figure.

    Attributes:
        at: Axis values that it was taken at, all that the run has.
        metric: Which figure.
        value: What was published.
        given: Whether it went into the costs as it stands, so that meeting it proves nothing.
    """

    at: dict[str, AxisValue]
    metric: str
    value: Annotated[float, Field(gt=0)]
    given: bool = False


class DeviationClaim(Strict):
    """Simulated figures lie within some percent of the published ones, at the points named.

    Attributes:
        metric: Which figure.
        where: Which published points: axis and the values that take part, null for an axis that the point does not have.
        within_percent: How far off the worst of them may be.
    """

    kind: Literal["deviation"]
    metric: str
    where: dict[str, list[AxisValue]]
    within_percent: Annotated[float, Field(gt=0)]


class GapClaim(Strict):
    """The difference of a metric between two points lies near a published difference.

    Attributes:
        metric: Which figure.
        high: Axis values of the point from which is subtracted.
        low: Those of the point that is subtracted.
        published: The published difference.
        within: How far off the simulated difference may be, in the metric's unit.
    """

    kind: Literal["gap"]
    metric: str
    high: dict[str, AxisValue]
    low: dict[str, AxisValue]
    published: float
    within: Annotated[float, Field(gt=0)]


class EqualClaim(Strict):
    """Metrics are equal to the last bit between points that differ in one axis only.

    Attributes:
        metrics: Which figures.
        where: Which runs: axis and the values that take part.
        across: The axis in which they differ.
    """

    kind: Literal["equal"]
    metrics: list[str] = Field(min_length=1)
    where: dict[str, list[AxisValue]]
    across: str


Claim = Annotated[DeviationClaim | GapClaim | EqualClaim, Field(discriminator="kind")]


class ScenarioSpec(Strict):
    """A scenario file.

    Attributes:
        name: Short, for tables and files.
        title: What is asked, in a line.
        source: Where published figures or the workload come from.
        assumptions: What is not published and stands in; printed with the results.
        family: Model family that renders.
        family_options: Constants of the family to replace.
        fleet: What the fleet consists of.
        costs: How long things take.
        faults: What goes wrong; null for nothing.
        workload: Requests and arrivals.
        seed: Of all random streams.
        axes: What varies: a dotted key that takes the values of a run, or named settings of several keys.
        runs: Blocks of axis values; each block is the product of its lists. Empty: one run as the file stands.
        columns: Figures that the table shows, one row a run; empty for a summary of each run.
        fit: Constants to choose before the runs.
        published: Figures to print beside the simulated ones.
        claims: What must hold; a claim that fails makes the exit code 1.
        slo: The service level: figures such as `ttft_ms.p99` and the most that each may be.
        plan: What `epdsim plan` may change to meet it.
        goodput: Which rates to search for the highest that meets it.
    """

    name: str
    title: str = ""
    source: str = ""
    assumptions: list[str] = Field(default_factory=list)
    family: str
    family_options: dict[str, Any] = Field(default_factory=dict)
    fleet: FleetSpec = Field(default_factory=FleetSpec)
    costs: CostsSpec
    faults: FaultsSpec | None = None
    workload: WorkloadSpec
    seed: Annotated[int, Field(ge=0)] = 0
    axes: dict[str, str | dict[str, dict[str, Any]]] = Field(default_factory=dict)
    runs: list[dict[str, Annotated[list[AxisValue], Field(min_length=1)]]] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    fit: FitSpec | None = None
    published: list[PublishedSpec] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
    slo: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    plan: PlanSpec | None = None
    goodput: GoodputSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.goodput is not None and not self.slo:
            raise ValueError("goodput needs a service level: name the figures to bound under slo, such as ttft_ms.p99")
        return self
