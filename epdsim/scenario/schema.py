"""The form of a scenario file."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.spec import EncodeCostSpec, LinkSpec, LmCostSpec, RenderCostSpec
from epdsim.scenario.fleet_schema import FleetSpec
from epdsim.scenario.strict import AxisValue, Count, Size, Strict, record_spec
from epdsim.workload.kinds import Kinds, Section
from epdsim.workload.registry import WorkloadSpec

if TYPE_CHECKING:
    from epdsim.scenario.claims_schema import Claim, PublishedSpec
    from epdsim.scenario.faults_schema import FaultsSpec
    from epdsim.scenario.search_schema import FitSpec, GoodputSpec, PlanSpec
    from epdsim.workload.leaving import ClientsSpec
else:  # sections that few files have
    FaultsSpec = Annotated[Any, Section("epdsim.scenario.faults_schema:FaultsSpec")]
    ClientsSpec = Annotated[Any, Section("epdsim.workload.leaving:ClientsSpec")]
    FitSpec = Annotated[Any, Section("epdsim.scenario.search_schema:FitSpec")]
    PlanSpec = Annotated[Any, Section("epdsim.scenario.search_schema:PlanSpec")]
    GoodputSpec = Annotated[Any, Section("epdsim.scenario.search_schema:GoodputSpec")]
    PublishedSpec = Annotated[Any, Section("epdsim.scenario.claims_schema:PublishedSpec")]
    _CLAIMS = {"deviation": "DeviationClaim", "gap": "GapClaim", "equal": "EqualClaim"}
    Claim = Annotated[Any, Kinds({kind: f"epdsim.scenario.claims_schema:{name}" for kind, name in _CLAIMS.items()})]

BroadcastSpec = record_spec(BroadcastProfile)


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
