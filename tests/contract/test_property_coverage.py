"""The coverage gate: every property has run against every system that it claims, or has a written exemption.

Against the reference the pack itself runs (`properties/`), which fails where a premise is not reached. Here are recordings of the
real vLLM 0.32 and simulated fleets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from epdsim.core.prompt import TokenRun
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost import LinearEncode, LinearLm, Link, RenderCost
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.events import Event
from epdsim.fleet import EncodePool, EnginePool, Faults, FleetConfig, FleetCosts, Loss, RenderPool, simulate
from epdsim.media import family
from epdsim.spec import JUDGED, Outcome, Verdict, judge, uncovered
from epdsim.sut.judge_file import judge_file
from epdsim.workload.request import MediaRef, WorkloadRequest

RECORDED = Path(__file__).parents[1] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"


def reached(verdicts: dict[str, Verdict], system: str) -> set[tuple[str, str]]:
    return {(name, system) for name, one in verdicts.items() if one.outcome is not Outcome.INCONCLUSIVE}


def test_recordings_of_the_release():
    judged = judge_file(RECORDED, JUDGED)
    assert uncovered(reached(judged.verdicts, "recorded"), ["recorded"]) == []
    assert (judged.unknown, judged.num_out_of_order) == ({}, 0)
    # What the release is known to do (docs/reference/rules.md), seen in what was recorded from it.
    assert set(judged.stories) == {"STRIP-AVAIL", "ENC-HIT", "ENC-MIRROR", "CHUNK-WHOLE"}
    story = judged.stories["STRIP-AVAIL"]
    assert "is to encode image-0 for r8, and of it the workers hold nothing" in "\n".join(story)


def fleet(topology: str, num_gpu_blocks: int, encoder_cache: int) -> FleetConfig:
    scheduler = SchedulerConfig(
        num_gpu_blocks=num_gpu_blocks,
        max_num_batched_tokens=512,
        max_num_seqs=16,
        encoder_cache_size=encoder_cache,
        max_num_encoder_input_tokens=encoder_cache,
        ec_role="consumer" if topology.startswith("e+") else "none",
        uses_mrope=True,
    )
    lm = LinearLm(fixed_ms=5.0, prefill_token_ms=0.02, pair_ms=0.0, decode_request_ms=0.1, context_token_ms=0.0)
    pool = EnginePool(2 if num_gpu_blocks > 100 else 1, scheduler, 2, lm)
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
    return FleetConfig(
        topology=topology,
        render=RenderPool(2),
        prefill=pool,
        decode=replace(pool, scheduler=replace(scheduler, ec_role="none")) if topology.endswith("p+d") else None,
        encode=EncodePool(1, 2) if topology.startswith("e+") else None,
        costs=costs,
    )


@pytest.fixture(scope="module")
def simulated() -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    requests = [
        WorkloadRequest(
            f"r{i}", 3.0 * i, (MediaRef(f"picture-{i % 3}", height=224, width=224), TokenRun("tail", 0, 60)), 60
        )
        for i in range(14)
    ]
    for topology in ("aggregated", "p+d", "e+pd", "e+p+d"):
        for num_gpu_blocks, encoder_cache in ((512, 8192), (14, 64)):
            events: list[Event] = []
            config = fleet(topology, num_gpu_blocks, encoder_cache)
            simulate(config, family("qwen3-vl-8b"), requests, [events.append], wants_detail=True)
            for name, verdict in judge(events, JUDGED).items():
                verdicts.setdefault(name, Verdict(name)).add(verdict)
    events = []
    lossy = replace(fleet("aggregated", 512, 8192), faults=Faults([Loss("engine-0", 3050.0, 3080.0)]))
    apart = [replace(one, arrival_ms=500.0 * number) for number, one in enumerate(requests)]
    simulate(lossy, family("qwen3-vl-8b"), apart, [events.append], wants_detail=True)
    for name, verdict in judge(events, JUDGED).items():
        verdicts[name].add(verdict)
    return verdicts


def test_simulated_fleets(simulated):
    assert uncovered(reached(simulated, "simulated"), ["simulated"]) == []


def test_nothing_is_violated_in_a_simulated_fleet(simulated):
    assert [verdict.first for verdict in simulated.values() if verdict.num_broken] == []
