"""What the workers are told: the strip in force at admission, with an encoder run, and on a resume."""

from __future__ import annotations

import pytest

from epdsim.core.plan import StepPlan
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.strip import payload_kind


def scheduler(dialect: Dialect = IDEAL, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


def request(name: str, length: int, *features, max_tokens: int = 2) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features)


def kinds(plan: StepPlan) -> list[list[str]]:
    return [[payload_kind(feature.data) for feature in new.mm_features] for new in plan.new]


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, ["none", "full"]),
        ({"uses_mrope": True}, ["metadata", "full"]),
        ({"uses_xdrope": True}, ["metadata", "full"]),
        ({"strip": "off"}, ["full", "full"]),
        ({"strip": "resend"}, ["none", "full"]),
        ({"enable_prefix_caching": False}, ["full", "full"]),
    ],
)
def test_covered_items_are_stripped_when_the_request_is_sent(image, run, settings, sent: list[str]) -> None:
    engine = scheduler(**settings)
    features = (image("x", 0, 4), image("y", 6, 4))
    engine.add_request(request("a", 6, features[0]))
    run(engine)
    engine.add_request(request("b", 12, *features))
    plan = engine.schedule()
    assert kinds(plan) == [sent]


def test_the_deferred_strip_sends_a_payload_with_its_encoder_run(image) -> None:
    engine = scheduler(strip="deferred", max_num_batched_tokens=8)
    engine.add_request(request("a", 20, image("x", 2, 4), image("y", 10, 4)))
    plans = []
    for _ in range(3):
        plans.append(engine.schedule())
        engine.update_from_output(plans[-1])
    assert kinds(plans[0]) == [["full", "none"]]
    assert [sorted(row.mm_updates) for plan in plans[1:] for row in plan.cached] == [[1], []]
    assert payload_kind(plans[1].cached[0].mm_updates[1].data) == "full"


def starved(image, strip: str, runner: str = "v1", dialect: Dialect = IDEAL) -> list[StepPlan]:
    """Defect A1: admitted on a hit over an image, preempted, its blocks and the image's embeddings lost, resumed from 0.

    Three requests suffice: A leaves the prefix behind, B starts on it and is preempted by C's growth, which takes the whole pool.
    """
    settings = {"num_gpu_blocks": 7, "encoder_cache_size": 4, "scheduler_reserve_full_isl": False}
    engine = scheduler(dialect, strip=strip, model_runner=runner, **settings)
    plans: list[StepPlan] = []

    def step() -> None:
        plans.append(engine.schedule())
        engine.update_from_output(plans[-1])

    engine.add_request(request("A", 6, image("x", 0, 4), max_tokens=1))
    step()
    engine.add_request(Request("C", TokenPrompt([3] * 8), 17, (image("z", 0, 4),)))
    engine.add_request(request("B", 7, image("x", 0, 4), max_tokens=9))
    while engine.has_unfinished:
        step()
    return plans


def resumed_encoder_run(plans: list[StepPlan]) -> StepPlan:
    (plan,) = [one for one in plans if "B" in one.scheduled_encoder_inputs]
    return plan


@pytest.mark.parametrize(
    ("strip", "release", "has_update"),
    [
        ("admission", "ideal", True),
        ("admission", "vllm-0.32", False),
        ("deferred", "vllm-0.32", True),
        ("resend", "vllm-0.32", True),
        ("off", "vllm-0.32", False),
    ],
)
def test_a_resumed_request_of_a_v1_worker_gets_its_pixels_again_but_not_in_a_release(
    image, strip: str, release: str, has_update: bool
) -> None:
    plans = starved(image, strip, dialect=named(release))
    (sent,) = [kinds(plan)[index] for plan in plans for index, new in enumerate(plan.new) if new.request_id == "B"]
    assert sent == ["full" if strip == "off" else "none"]
    resume = resumed_encoder_run(plans)
    (row,) = [row for row in resume.cached if row.request_id == "B"]
    assert row.resumed
    assert bool(row.mm_updates) == has_update


def test_a_v2_worker_gets_everything_anew(image) -> None:
    resume = resumed_encoder_run(starved(image, "admission", runner="v2"))
    assert kinds(resume) == [["full"]]


def test_features_that_are_sent_whole_are_the_requests_own(image) -> None:
    engine = scheduler()
    one = request("a", 8, image("x", 1, 4))
    engine.add_request(one)
    assert engine.schedule().new[0].mm_features is one.mm_features
