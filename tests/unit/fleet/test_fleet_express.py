"""The fast way for text: which runs go it, that it is gone, and that its law would notice if it led elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.prompt import TokenRun
from epdsim.core.releases.dialects import named
from epdsim.core.request import WARM_UP
from epdsim.events import Admitted, Preempted, RequestFailed, RequestFinished
from epdsim.fleet import LinkSharing, simulate
from epdsim.fleet.express import TextFleet, can_carry
from epdsim.fleet.express import scheduler as text_scheduler
from epdsim.fleet.express.plan_size import PlanSize
from epdsim.fleet.faults import Faults
from epdsim.fleet.processes import simulate_in
from epdsim.fleet.world import World
from epdsim.media import family
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.workload import Workload


def asked(name: str, at_ms: float = 0.0, length: int = 100, output_tokens: int = 5, **more: object) -> WorkloadRequest:
    return WorkloadRequest(name, at_ms, (TokenRun(name, 0, length),), output_tokens, **more)


TEXT = [asked("a"), asked("b", 3.0, 700), asked("c", 3.0, 90, 40), asked("d", 50.0, 130, 1)]


def with_scheduler(config, **changes):
    return replace(config, prefill=replace(config.prefill, scheduler=replace(config.prefill.scheduler, **changes)))


def events_of_both_ways(config, requests):
    fast, slow = [], []
    TextFleet(config, fast.append, wants_detail=True).run(requests, None, keeps_arrivals=False)
    world = World(config, [slow.append], wants_detail=True, takes_strides=True)
    simulate_in(world, family("qwen3-vl-8b"), requests)
    return fast, slow


CHANGES = {
    "dialect": {"dialect": named("vllm-0.32")},
    "faults": {"faults": Faults()},
}
SETTINGS = {
    "policy": {"policy": "priority"},
    "async": {"async_scheduling": True},
    "drafts": {"speculative_method": "ngram", "num_speculative_tokens": 2},
    "long prefill": {"long_prefill_token_threshold": 64},
    "blocks of 48": {"block_size": 48},
    "kv connector": {"kv_role": "consumer"},
    "hybrid model": {"mamba_block_aligned_split": True},
}


def test_text_through_engines_that_generate_is_carried(small_fleet) -> None:
    assert can_carry(small_fleet(), TEXT)
    assert can_carry(small_fleet(orchestrator="batched", router="least_loaded"), TEXT)
    assert can_carry(small_fleet(), [asked("a", slo_class=WARM_UP)])


@pytest.mark.parametrize("topology", ["p+d", "e+pd", "e+p+d"])
def test_stages_apart_are_not(small_fleet, topology) -> None:
    assert not can_carry(small_fleet(topology), TEXT)


@pytest.mark.parametrize("name", CHANGES)
def test_fleets_that_do_more_are_not(small_fleet, name) -> None:
    assert not can_carry(small_fleet(**CHANGES[name]), TEXT)


@pytest.mark.parametrize("name", SETTINGS)
def test_schedulers_that_do_more_are_not(small_fleet, name) -> None:
    assert not can_carry(with_scheduler(small_fleet(), **SETTINGS[name]), TEXT)


def test_shared_lines_and_engines_in_step_are_not(small_fleet) -> None:
    config = small_fleet()
    assert not can_carry(replace(config, costs=replace(config.costs, sharing=LinkSharing(body="fleet"))), TEXT)
    assert not can_carry(replace(config, prefill=replace(config.prefill, lockstep=True)), TEXT)


@pytest.mark.parametrize(
    "odd",
    [
        WorkloadRequest("odd", 60.0, (TokenRun("odd", 0, 9), MediaRef("sun", "image", 224, 224)), 5),
        WorkloadRequest("odd", 60.0, (), 5),
        asked("odd", 60.0, length=200_000),
        asked("odd", 60.0, length=8_100, output_tokens=200),
        asked("odd", 60.0, patience_ms=10.0),
        asked("odd", 60.0, leaves_ms=10.0),
        asked("a", 60.0),
        WorkloadRequest("odd", 60.0, (TokenRun("a", 0, 100), TokenRun(("output", "a"), 0, 5)), 5),
    ],
    ids=[
        *("picture", "empty", "too long for the model", "too long for the pool", "impatient", "leaves", "id in use"),
        "goes on with an output",
    ],
)
def test_one_request_that_is_not_plain_text_speaks_against_it(small_fleet, odd) -> None:
    assert not can_carry(small_fleet(), [*TEXT, odd])


def test_what_can_be_read_but_once_is_not_looked_at(small_fleet) -> None:
    source, events = iter(TEXT), []
    assert not can_carry(small_fleet(), source)
    simulate(small_fleet(), family("qwen3-vl-8b"), source, [events.append])
    assert sum(isinstance(one, RequestFinished) for one in events) == len(TEXT)


def test_a_workload_that_says_that_it_is_text_is_not_looked_at(small_fleet) -> None:
    def unread():
        raise AssertionError("it is read")

    most = 511 * 16 + 1  # all blocks but the one that nobody gets, and the token that is never computed
    assert can_carry(small_fleet(), Workload("told", "here", unread, most_text_tokens=most))
    told_too_much = Workload("told", "here", lambda: iter(TEXT), most_text_tokens=most + 1)
    assert can_carry(small_fleet(), told_too_much)
    with pytest.raises(AssertionError, match="it is read"):
        can_carry(small_fleet(), replace(told_too_much, make_requests=unread))


def test_prompts_that_must_be_computed_at_once_fit_into_a_step(small_fleet) -> None:
    """After a preemption the output is computed with them."""
    at_once = with_scheduler(small_fleet(), enable_chunked_prefill=False, max_model_len=512)
    assert can_carry(at_once, [asked("a", length=500, output_tokens=12)])
    assert not can_carry(with_scheduler(at_once, max_model_len=4096), [asked("a", length=500, output_tokens=14)])


def test_a_run_goes_the_fast_way_when_it_can(small_fleet, monkeypatch) -> None:
    gone = []
    carry = TextFleet.run
    monkeypatch.setattr(TextFleet, "run", lambda self, *more, **named: gone.append(1) or carry(self, *more, **named))
    fast, slow = [], []
    simulate(small_fleet(), family("qwen3-vl-8b"), TEXT, [fast.append])
    assert gone == [1]
    simulate(small_fleet(), family("qwen3-vl-8b"), TEXT, [slow.append], takes_strides=False)
    assert gone == [1]
    ends = [
        [(one.request_id, one.time_ms) for one in events if isinstance(one, RequestFinished)] for events in (fast, slow)
    ]
    assert ends[0] == ends[1]


def test_a_request_that_an_engine_refuses_is_refused_the_other_way(small_fleet) -> None:
    events = []
    simulate(small_fleet(), family("qwen3-vl-8b"), [*TEXT, asked("e", 60.0, 200_000)], [events.append])
    assert [one.request_id for one in events if isinstance(one, RequestFailed)] == ["e"]


def test_who_goes_on_with_what_another_generates_finds_it(small_fleet) -> None:
    """While that one still decodes: its blocks can be found from the step on that fills them."""
    turn = (TokenRun("a", 0, 100), TokenRun(("output", "a"), 0, 200))
    requests = [asked("a", output_tokens=4000), WorkloadRequest("next", 10_000.0, turn, 5)]
    fast, slow = [], []
    simulate(small_fleet(), family("qwen3-vl-8b"), requests, [fast.append], wants_detail=True, takes_strides=True)
    world = World(small_fleet(), [slow.append], wants_detail=True, takes_strides=True)
    simulate_in(world, family("qwen3-vl-8b"), requests)
    assert fast == slow
    assert [one.num_computed_tokens for one in fast if isinstance(one, Admitted)] == [0, 288]


TIGHT = {"num_gpu_blocks": 40, "max_num_batched_tokens": 128}
"""Room for some six hundred tokens: who goes on needs what others have."""

CROWD = [asked(f"r{index}", index * 2.0, 90 + 17 * index, 60 + 100 * (index % 2)) for index in range(8)]


def test_preemptions_are_those_of_plans(small_fleet) -> None:
    config = with_scheduler(small_fleet(), **TIGHT)
    assert can_carry(config, CROWD)
    fast, slow = events_of_both_ways(config, CROWD)
    assert fast == slow
    assert sum(isinstance(one, Preempted) for one in fast) > 3


def test_who_comes_back_and_has_one_token_left_to_compute_decodes(small_fleet) -> None:
    """Its last chunk samples nothing; the step after it decides nothing, as for whoever has just sampled."""
    config = with_scheduler(small_fleet(), num_gpu_blocks=20, max_num_batched_tokens=64, enable_prefix_caching=False)
    fast, slow = events_of_both_ways(config, [asked("a", 0.0, 100, 71), asked("b", 1.0, 60, 80)])
    assert fast == slow
    assert sum(isinstance(one, Preempted) for one in fast) == 1


def whole_hit(num_tokens: int) -> int:
    return num_tokens


def shortest_first(heap, item) -> None:
    heap.append(item)


BUGS = {
    "a hit leaves nothing to compute": (text_scheduler, "longest_hit", whole_hit),
    "numbers never widen": (PlanSize, "widen", lambda *_: None),
    "ended requests are not told": (PlanSize, "add_finished", lambda *_: None),
    "nobody gets further blocks": (text_scheduler.TextScheduler, "_needing", lambda *_: []),
    "ends out of order": (text_scheduler, "heappush", shortest_first),
    "a chunk weighs nothing": (text_scheduler, "chunk_pairs", lambda *_: 0),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_law_notices_a_planted_bug(small_fleet, monkeypatch, name) -> None:
    """FWD-EQ of the fast way, as `tests/property/test_express_laws.py` states it."""
    config = with_scheduler(small_fleet(), **TIGHT)
    shared = TokenRun("shared", 0, 64)
    crowd = [replace(one, parts=(shared, *one.parts) if index % 2 else (shared,)) for index, one in enumerate(CROWD)]
    costs = config.prefill.lm
    costs.pair_ms = 1e-4
    fast, slow = events_of_both_ways(config, crowd)
    assert fast == slow
    place, attribute, bug = BUGS[name]
    monkeypatch.setattr(place, attribute, bug)
    try:
        fast, slow = events_of_both_ways(config, crowd)
    except (AssertionError, IndexError):
        return  # it does not even come to an end
    assert fast != slow
