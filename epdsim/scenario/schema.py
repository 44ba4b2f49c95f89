"""The form of a scenario file."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.spec import EncodeCostSpec, LinkSpec, LmCostSpec, RenderCostSpec
from epdsim.scenario.faults_schema import FaultsSpec
from epdsim.scenario.fleet_schema import FleetSpec
from epdsim.scenario.strict import AxisValue, Count, Instances, Size, Strict, record_spec
from epdsim.workload.leaving import ClientsSpec
from epdsim.workload.registry import WorkloadSpec

BroadcastSpec = record_spec(BroadcastProfile)


MOST_RATES = 100_000
"""Of a search for goodput."""


class CostsSpec(Strict):
    """How long things take; each constant says where it comes from in a comment of the file.

    Attributes:
        lm: Steps of the language model.
        decode_lm: Those of decode engines where they differ.
        encode: Encoder runs, on encode instances and in engines that encode themselves.
        render: Front end.
        encode_render: Front ends of encode instances, per leg and per item; by default they cost what `render` does.
        broadcast: From the plan of a step to the ranks.
        hop_ms: What a call to an instance costs beside its work: HTTP, the server's event loop, the way to its engine and back. The
            default is chosen on one mean TTFT of vLLM 0.15.1 and predicts others (`scenarios/validation/text-rates-h100.yaml`).
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
    broadcast: BroadcastSpec = BroadcastSpec()  # pyright: ignore[reportInvalidTypeForm]
    hop_ms: Size = 7.5
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
    check: dict[str, Any] = Field({})
    what_if: dict[str, dict[str, Any]] = Field({})


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
        clients: When clients leave that wait for answers; null for never.
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
    assumptions: list[str] = Field([])
    family: str
    family_options: dict[str, Any] = Field({})
    fleet: FleetSpec = FleetSpec()
    costs: CostsSpec
    faults: FaultsSpec | None = None
    workload: WorkloadSpec
    clients: ClientsSpec | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    axes: dict[str, str | dict[str, dict[str, Any]]] = Field({})
    runs: list[dict[str, Annotated[list[AxisValue], Field(min_length=1)]]] = Field([])
    columns: list[str] = Field([])
    fit: FitSpec | None = None
    published: list[PublishedSpec] = Field([])
    claims: list[Claim] = Field([])
    slo: dict[str, Annotated[float, Field(gt=0)]] = Field({})
    plan: PlanSpec | None = None
    goodput: GoodputSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.goodput is not None and not self.slo:
            raise ValueError("goodput needs a service level: name the figures to bound under slo, such as ttft_ms.p99")
        return self
