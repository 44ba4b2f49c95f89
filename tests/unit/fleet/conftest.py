"""A small fleet of any topology, with costs that are easy to add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from epdsim.core.prompt import TokenRun
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost import LinearEncode, LinearLm, Link, RenderCost
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.events import Event
from epdsim.fleet import EncodePool, EnginePool, FleetConfig, FleetCosts, RenderPool, simulate
from epdsim.media import family
from epdsim.report.metrics import RunMetrics
from epdsim.report.sink import MetricsSink
from epdsim.workload.request import MediaRef, WorkloadRequest


@dataclass
class Run:
    """What came of a small run."""

    metrics: RunMetrics
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def small_fleet(topology: str = "aggregated", **changes: object) -> FleetConfig:
    role = "consumer" if topology.startswith("e+") else "none"
    scheduler = SchedulerConfig(
        num_gpu_blocks=512, max_num_batched_tokens=512, max_num_seqs=16, ec_role=role, uses_mrope=True
    )
    lm = LinearLm(fixed_ms=5.0, prefill_token_ms=0.02, pair_ms=0.0, decode_request_ms=0.1, context_token_ms=0.0)
    pool = EnginePool(1, scheduler, 2, lm)
    costs = FleetCosts(
        render=RenderCost(fixed_ms=1.0),
        encode=LinearEncode(fixed_ms=2.0, patch_ms=0.01),
        broadcast=BroadcastProfile(),
        hop_ms=0.5,
        body_link=Link(1e9),
        ec_link=Link(1e9),
        kv_link=Link(1e9),
        kv_bytes_per_token=1000,
    )
    return replace(
        FleetConfig(
            topology=topology,
            render=RenderPool(2),
            prefill=pool,
            decode=replace(pool, scheduler=replace(scheduler, ec_role="none")) if topology.endswith("p+d") else None,
            encode=EncodePool(1, 2) if topology.startswith("e+") else None,
            costs=costs,
        ),
        **changes,
    )


def chat(
    name: str, arrival_ms: float = 0.0, *, text: int = 40, images: Sequence[str] = (), output: int = 5
) -> WorkloadRequest:
    media = [MediaRef(content, height=224, width=224) for content in images]
    return WorkloadRequest(
        name, arrival_ms, (TokenRun(f"{name}/text", 0, text), *media, TokenRun("tail", 0, 20)), output
    )


@pytest.fixture(scope="session")
def run_fleet() -> Callable[..., Run]:
    def run(
        config: FleetConfig,
        requests: Sequence[WorkloadRequest],
        concurrency: int | None = None,
        *,
        keeps_arrivals: bool = False,
    ) -> Run:
        metrics, events = MetricsSink(), list[Event]()
        sinks = [metrics, events.append]
        simulate(
            config,
            family("qwen3-vl-8b"),
            requests,
            sinks,
            concurrency=concurrency,
            keeps_arrivals=keeps_arrivals,
            wants_detail=True,
        )
        return Run(metrics.result(), events)

    return run


@pytest.fixture(name="small_fleet", scope="session")
def _small_fleet() -> Callable[..., FleetConfig]:
    return small_fleet


@pytest.fixture(name="chat", scope="session")
def _chat() -> Callable[..., WorkloadRequest]:
    return chat
