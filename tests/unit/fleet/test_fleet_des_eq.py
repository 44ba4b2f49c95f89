"""DES-EQ: a workload through the simulator takes the decisions that the bare core takes under a plain loop over time."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.slots import features_of
from epdsim.cost import LinearEncode, Link, RenderCost
from epdsim.events import StepFinished, StepPlanned
from epdsim.fleet import RenderPool, simulate
from epdsim.fleet.grid import on_grid
from epdsim.fleet.render import Renderer
from epdsim.fleet.step_cost import BroadcastCost, step_load
from epdsim.media import family
from epdsim.workload.request import MediaRef, WorkloadRequest

FAMILY = family("qwen3-vl-8b")
AT_ONCE = RenderCost(
    [(1.0, 0.0), (2.0, 0.0)], hash_bytes_per_s=1e30, item_ms=0, media_ms=0, decode_megapixel_ms=0, text_token_us=0
)
"""A front end that takes no time: a request reaches its engine when it arrives."""


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SchedulerConfig, list[WorkloadRequest]]:
    config = SchedulerConfig(
        num_gpu_blocks=draw(st.integers(16, 40)),
        block_size=draw(st.sampled_from([8, 16])),
        max_num_batched_tokens=draw(st.sampled_from([16, 48, 128])),
        max_num_seqs=draw(st.integers(1, 5)),
        encoder_cache_size=draw(st.sampled_from([64, 128, 400])),
        max_num_encoder_input_tokens=draw(st.sampled_from([64, 128, 400])),
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        uses_mrope=True,
    )
    now_ms, requests = 0.0, list[WorkloadRequest]()
    for number in range(draw(st.integers(1, 7))):
        now_ms += draw(st.sampled_from([0.0, 0.1, 5.0, 17.3, 120.0]))
        parts: list[TokenRun | MediaRef] = [TokenRun(draw(st.sampled_from("ab")), 0, draw(st.integers(1, 40)))]
        parts += [MediaRef(draw(st.sampled_from("xyz")), height=224, width=224) for _ in range(draw(st.integers(0, 1)))]
        parts.append(TokenRun(draw(st.sampled_from(["tail", f"own{number}"])), 0, draw(st.integers(1, 20))))
        output = draw(st.integers(1, 60))
        requests.append(WorkloadRequest(f"r{number}", now_ms, tuple(parts), output, priority=draw(st.integers(0, 2))))
    return config, requests


def plain_loop(fleet, sources):
    """Step after step with a clock in a variable: time of each plan, and what it decides."""
    renderer = Renderer(FAMILY, fleet.dialect, [])
    pool, broadcast = fleet.prefill, BroadcastCost(fleet.costs.broadcast, fleet.prefill.tp)
    scheduler, rendered, requests, decisions = Scheduler(pool.scheduler, fleet.dialect), {}, {}, []
    pending, now_ms = list(sources), 0.0
    # An engine that comes up looks for work at once: plans are numbered from there, and the number is a part of a message.
    scheduler.update_from_output(scheduler.schedule())
    is_idle = True

    def arrive_until(end_ms):
        while pending and on_grid(pending[0].arrival_ms) <= end_ms:
            source = pending.pop(0)
            known = rendered[source.request_id] = renderer.render(source)
            features = features_of(known.tables, fleet.dialect) if known.tables else ()
            requests[source.request_id] = Request(
                source.request_id, known.prompt, source.output_tokens, features,
                priority=source.priority, arrival_time=source.arrival_ms,
            )  # fmt: skip
            with contextlib.suppress(InputError):  # refused here and there: no schedule could finish it
                scheduler.add_request(requests[source.request_id])

    while pending or scheduler.has_unfinished:
        arrive_until(now_ms)
        if is_idle and not scheduler.has_unfinished:  # it waits for somebody to come, without planning again
            now_ms = on_grid(pending[0].arrival_ms) if pending else now_ms
            continue
        plan = scheduler.schedule()
        duration_ms, is_idle = 0.0, not plan.total_num_scheduled_tokens
        if plan.total_num_scheduled_tokens:
            decisions.append(
                (now_ms, plan.num_scheduled_tokens, plan.scheduled_encoder_inputs, plan.free_encoder_mm_hashes)
            )
            patches = [
                rendered[name].items[index].media.encoder_patches
                for name, inputs in plan.scheduled_encoder_inputs.items()
                for index in inputs
            ]
            duration_ms = broadcast.of(plan, requests).total_ms + fleet.costs.encode.encode_ms(patches)
            duration_ms += pool.lm.step_ms(step_load(plan, requests))
        elif pending and not plan.preempted:  # who was preempted may be what made room: the next plan follows at once
            duration_ms = on_grid(pending[0].arrival_ms) - now_ms
        now_ms += on_grid(duration_ms)
        arrive_until(now_ms)
        scheduler.update_from_output(plan)
    return decisions


PICTURE = MediaRef("x", height=224, width=224)
PLAN_128 = (
    SchedulerConfig(
        num_gpu_blocks=16,
        block_size=8,
        max_num_batched_tokens=48,
        max_num_seqs=1,
        encoder_cache_size=64,
        max_num_encoder_input_tokens=64,
        enable_prefix_caching=False,
        uses_mrope=True,
    ),
    [
        WorkloadRequest(f"r{number}", 0.1, (TokenRun("a", 0, 1), *media, TokenRun("tail", 0, length)), output)
        for number, (length, output, media) in enumerate(
            [(1, 47, ()), (1, 53, (PICTURE,)), (1, 25, ()), (2, 1, ()), (1, 1, ())]
        )
    ],
)
"""A request is admitted by plan 127; the number of the next is longer by a byte, which takes a nanosecond."""

FIRST_IS_REFUSED = (
    replace(PLAN_128[0], policy="priority"),
    [
        WorkloadRequest(f"r{number}", arrival_ms, (TokenRun("a", 0, 1), *media, TokenRun("tail", 0, length)), output)
        for number, (arrival_ms, length, output, media) in enumerate(
            [
                (0.0, 1, 54, (PICTURE,)), (0.1, 1, 12, (PICTURE,)), (120.1, 1, 18, (PICTURE,)), (120.1, 1, 59, ()),
                (120.1, 2, 1, ()), (120.1, 1, 1, ()), (120.1, 1, 34, ()),
            ]
        )
    ],
)  # fmt: skip
"""The first request is refused, so that the engine waits on for the second."""


def fleet_of(small_fleet, config):
    """One engine behind a front end and links that take no time."""
    base = small_fleet("aggregated", render=RenderPool(100))
    costs = replace(
        base.costs, render=AT_ONCE, hop_ms=0.0, body_link=Link(1e30), encode=LinearEncode(fixed_ms=2, patch_ms=0.01)
    )
    return replace(base, prefill=replace(base.prefill, scheduler=config), costs=costs)


def simulated(fleet, requests):
    """Events of a run, and its decisions in the form of the plain loop's."""
    events = []
    simulate(fleet, FAMILY, requests, [events.append], wants_detail=True)
    return events, [
        (one.time_ms, one.num_scheduled_tokens, one.scheduled_encoder_inputs, one.free_encoder_mm_hashes)
        for one in events
        if isinstance(one, StepPlanned) and one.num_scheduled_tokens
    ]


@pytest.mark.engine_law
@settings(max_examples=250)
@example(PLAN_128)
@example(FIRST_IS_REFUSED)
@given(worlds())
def test_the_simulator_decides_what_the_bare_core_decides(small_fleet, world) -> None:
    config, requests = world
    fleet = fleet_of(small_fleet, config)
    events, decisions = simulated(fleet, requests)
    assert decisions == plain_loop(fleet, requests)
    if len({one.num_requests for one in events if isinstance(one, StepFinished)}) > 2:
        event("batches of several sizes")


def test_an_engine_with_an_order_of_its_own_is_noticed(small_fleet, monkeypatch) -> None:
    """The planted bug: the simulated engine admits as requests come, whatever the policy says."""
    config = SchedulerConfig(num_gpu_blocks=64, max_num_batched_tokens=128, max_num_seqs=1, policy="priority")
    requests = [WorkloadRequest(f"r{n}", float(n), (TokenRun(f"r{n}", 0, 20),), 5, priority=3 - n) for n in range(3)]
    fleet = fleet_of(small_fleet, config)
    expected = plain_loop(fleet, requests)
    assert simulated(fleet, requests)[1] == expected
    monkeypatch.setattr(
        "epdsim.fleet.stepping.Scheduler", lambda config, rules, *_: Scheduler(replace(config, policy="fcfs"), rules)
    )
    assert simulated(fleet, requests)[1] != expected
