"""The form of a scenario file."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from epdsim.core.errors import InputError
from epdsim.core.scheduler_config import SchedulerConfig
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.spec import EncodeCostSpec, LinkSpec, LmCostSpec, RenderCostSpec
from epdsim.workload import WorkloadSpec


class Strict(BaseModel):
    """Unknown keys, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


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

Count = Annotated[int, Field(ge=1)]
Size = Annotated[float, Field(ge=0)]
AxisValue = int | float | bool | str | None


class RenderPoolSpec(Strict):
    """Front-end processes."""

    count: Count = 1
    cache_gib: Size = 4.0


class EncodePoolSpec(Strict):
    """Encode-only instances."""

    count: Count = 1
    max_batch_items: Count = 8


class EnginePoolSpec(Strict):
    """Engines."""

    count: Count = 1
    tp: Count = 1
    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec)  # pyright: ignore[reportInvalidTypeForm]


class FleetSpec(Strict):
    """What the fleet consists of."""

    topology: Literal["aggregated", "p+d", "e+pd", "e+p+d"] = "aggregated"
    dialect: str = "ideal"
    router: Literal["round_robin", "least_loaded", "prefix_affinity"] = "round_robin"
    prefill_payload: Literal["full", "metadata", "deferred"] = "metadata"
    ec_capacity_gib: Annotated[float, Field(gt=0)] | None = None
    render: RenderPoolSpec = Field(default_factory=RenderPoolSpec)
    encode: EncodePoolSpec = Field(default_factory=EncodePoolSpec)
    prefill: EnginePoolSpec = Field(default_factory=EnginePoolSpec)
    decode: EnginePoolSpec = Field(default_factory=EnginePoolSpec)


class CostsSpec(Strict):
    """How long things take; each constant says where it comes from in a comment of the file."""

    lm: LmCostSpec
    decode_lm: LmCostSpec | None = None
    encode: EncodeCostSpec
    render: RenderCostSpec
    broadcast: BroadcastSpec = Field(default_factory=BroadcastSpec)  # pyright: ignore[reportInvalidTypeForm]
    hop_ms: Size = 0.5
    body_link: LinkSpec
    ec_link: LinkSpec
    kv_link: LinkSpec
    kv_bytes_per_token: Annotated[int, Field(ge=0)]


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


class PublishedSpec(Strict):
    """One published figure: the axis values it was taken at, the metric and its value."""

    at: dict[str, AxisValue]
    metric: str
    value: Annotated[float, Field(gt=0)]


class DeviationClaim(Strict):
    """Simulated figures lie within some percent of the published ones, at the points named."""

    kind: Literal["deviation"]
    metric: str
    where: dict[str, list[AxisValue]]
    within_percent: Annotated[float, Field(gt=0)]


class GapClaim(Strict):
    """The difference of a metric between two points lies near a published difference."""

    kind: Literal["gap"]
    metric: str
    high: dict[str, AxisValue]
    low: dict[str, AxisValue]
    published: float
    within: Annotated[float, Field(gt=0)]


class EqualClaim(Strict):
    """Metrics are equal to the last bit between points that differ in one axis only."""

    kind: Literal["equal"]
    metrics: list[str]
    where: dict[str, list[AxisValue]]
    across: str


Claim = Annotated[DeviationClaim | GapClaim | EqualClaim, Field(discriminator="kind")]


class ScenarioSpec(Strict):
    """A scenario file.

    Attributes:
        axes: What varies: a dotted key that takes the values of a run, or named settings of several keys.
        runs: Blocks of axis values; each block is the product of its lists. Empty: one run as the file stands.
        columns: Metrics that the table shows.
    """

    name: str
    title: str = ""
    source: str = ""
    assumptions: list[str] = Field(default_factory=list)
    family: str
    family_options: dict[str, Any] = Field(default_factory=dict)
    fleet: FleetSpec = Field(default_factory=FleetSpec)
    costs: CostsSpec
    workload: WorkloadSpec
    seed: Annotated[int, Field(ge=0)] = 0
    axes: dict[str, str | dict[str, dict[str, Any]]] = Field(default_factory=dict)
    runs: list[dict[str, Annotated[list[AxisValue], Field(min_length=1)]]] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    fit: FitSpec | None = None
    published: list[PublishedSpec] = Field(default_factory=list)
    claims: list[Claim] = Field(default_factory=list)
