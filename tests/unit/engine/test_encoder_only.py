"""Engines that only encode: no KV cache, no tokens, and a request ends with its prompt."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.rules import ENCODED, ENCODER_END, ENCODER_PARTS, ENCODER_TOKEN
from epdsim.core.scheduler.scheduler import Scheduler

MINOR = {f"vllm-0.{minor}": minor for minor in range(25, 34)}
releases = pytest.mark.parametrize("name", ["ideal", *MINOR])


def scheduler(dialect=IDEAL, **settings) -> Scheduler:
    defaults = {
        "num_gpu_blocks": 2,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "max_model_len": 64,
        "encoder_cache_size": 8,
        "max_num_encoder_input_tokens": 8,
        "enable_prefix_caching": False,
        "mm_encoder_only": True,
        "ec_role": "producer",
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


def request(name: str, length: int, *features, max_tokens: int = 1) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features)


def test_a_prompt_of_any_length_takes_no_block(image) -> None:
    engine = scheduler()
    engine.add_request(request("a", 20, image("x", 2, 4), image("y", 12, 4)))
    ended: list[str] = []
    plans = []
    while engine.has_unfinished:
        plans.append(engine.schedule())
        outcome = engine.update_from_output(plans[-1])
        ended += outcome.finished
        assert not outcome.new_tokens
    assert [dict(plan.num_scheduled_tokens) for plan in plans] == [{"a": 8}, {"a": 8}, {"a": 4}]
    assert [dict(plan.scheduled_encoder_inputs) for plan in plans] == [{"a": [0]}, {"a": [1]}, {}]
    assert [list(row.block_ids) for row in plans[0].new] == [[]]
    assert [row.new_block_ids for plan in plans for row in plan.cached] == [None, None]
    assert not any(plan.samples for plan in plans)
    assert ended == ["a"]
    assert engine.free_blocks == 1
    assert engine.steady_steps() == 0


@releases
def test_it_ends_when_its_last_step_is_over(image, name: str) -> None:
    """Under async scheduling releases end a request with the output of a step before the one that encodes its last item."""
    if MINOR.get(name, 99) <= 27:
        assert named(name)[ENCODER_TOKEN]()
        return  # it makes up a token, which async scheduling did not count on
    engine = scheduler(named(name), async_scheduling=True)
    engine.add_request(request("a", 16, image("x", 10, 4)))
    first, second = engine.schedule(), engine.schedule()
    assert (dict(first.scheduled_encoder_inputs), dict(second.scheduled_encoder_inputs)) == ({}, {"a": [0]})
    assert list(engine.update_from_output(first).finished) == ([] if name == "ideal" else ["a"])
    assert list(engine.update_from_output(second).finished) == (["a"] if name == "ideal" else [])
    assert named(name)[ENCODED](16, 8) == (8 if name == "ideal" else 16)


@releases
def test_nothing_is_planned_beyond_a_prompt(name: str) -> None:
    if MINOR.get(name, 99) <= 27:
        return
    engine = scheduler(named(name), async_scheduling=True)
    engine.add_request(request("a", 8, max_tokens=5))
    engine.schedule()
    assert dict(engine.schedule().num_scheduled_tokens) == ({} if name == "ideal" else {"a": 1})
    assert named(name)[ENCODER_END]() is (name != "ideal")


@releases
def test_a_prompt_is_taken_in_parts_with_chunked_prefill_off(name: str) -> None:
    engine = scheduler(named(name), enable_chunked_prefill=False)
    engine.add_request(request("a", 12), trusted=True)
    assert dict(engine.schedule().num_scheduled_tokens) == ({} if MINOR.get(name, 99) <= 31 else {"a": 8})
    assert named(name)[ENCODER_PARTS]() is (MINOR.get(name, 99) > 31)


@releases
def test_no_tokens_are_made_up(image, name: str) -> None:
    """Up to 0.27 one is, even before the item is reached, and `max_tokens` 1 ends the request (vLLM PR 50275)."""
    engine = scheduler(named(name))
    engine.add_request(request("a", 16, image("x", 10, 4)))
    plan = engine.schedule()
    makes_up = MINOR.get(name, 99) <= 27
    assert list(plan.samples) == (["a"] if makes_up else [])
    assert engine.update_from_output(plan).finished == (["a"] if makes_up else [])


def test_a_prefix_cache_is_refused() -> None:
    with pytest.raises(InputError, match="enable_prefix_caching"):
        scheduler(enable_prefix_caching=True)
