"""Chunks that end at block boundaries, for hybrid models."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

RELEASE = named("vllm-0.32")


def aligned(dialect=IDEAL, method="none", **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 65,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "max_model_len": 128,
        "mamba_block_aligned_split": True,
        "speculative_method": method,
        "num_speculative_tokens": 2 if method != "none" else 0,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


def request(name: str, length: int, *features, max_tokens: int = 2, token: int = 7) -> Request:
    return Request(name, TokenPrompt([token] * length), max_tokens, features)


def step(engine: Scheduler):
    plan = engine.schedule()
    engine.update_from_output(plan)
    return plan


def chunks(engine: Scheduler, one: Request) -> list[int]:
    engine.add_request(one)
    found = []
    while engine._engine.requests[one.request_id].num_computed < one.prompt.num_tokens:
        found.append(step(engine).num_scheduled_tokens.get(one.request_id, 0))
        assert len(found) < 20
    return found


def test_chunks_end_at_block_boundaries() -> None:
    assert chunks(aligned(max_num_batched_tokens=7), request("a", 15)) == [4, 4, 4, 3]


def test_a_chunk_stops_at_the_last_boundary_that_a_hit_can_use() -> None:
    assert chunks(aligned(), request("a", 15)) == [12, 3]
    assert chunks(aligned(), request("a", 16)) == [12, 4]
    assert chunks(aligned(method="eagle"), request("a", 16)) == [12, 4]
    assert chunks(aligned(method="eagle"), request("a", 15)) == [8, 7]


def test_a_block_that_no_step_can_hold_is_computed_in_parts() -> None:
    assert chunks(aligned(block_size=16, max_num_batched_tokens=6), request("a", 20)) == [6, 6, 4, 4]


def test_a_block_that_no_step_can_hold_beside_the_drafters_slots_is_computed_in_parts() -> None:
    """LIVE-PROG: a draft model of its own takes one of four tokens, and the release waits for a step that has room for four."""
    narrow = {"method": "draft_model", "max_num_batched_tokens": 4, "max_num_seqs": 1}
    assert chunks(aligned(**narrow), request("a", 10)) == [3, 1, 3, 1, 2]
    release = aligned(RELEASE, **narrow)
    release.add_request(request("a", 10), trusted=True)
    assert not any(step(release).total_num_scheduled_tokens for _ in range(20))


def test_a_chunk_that_the_encoder_cut_is_aligned_again(image) -> None:
    engine = aligned(encoder_cache_size=4)
    one = request("a", 16, image("x", 0, 4), image("y", 5, 4))
    assert chunks(engine, one) == [5, 3, 4, 4]


def test_a_boundary_near_the_end_does_not_stop_a_drafter_of_several_modules_for_ever() -> None:
    """LIVE-PROG: what is left for the drafter and the next boundary leave the release nothing to compute."""
    left = []
    for dialect in (IDEAL, RELEASE):
        engine = aligned(dialect, method="mtp", block_size=2, max_num_batched_tokens=4, max_num_seqs=2)
        engine.add_request(request("b", 1, max_tokens=30, token=8))
        step(engine)
        engine.add_request(request("a", 9))
        for _ in range(100):
            engine.update_draft_tokens({"b": 1})
            step(engine)
        left.append([9 - state.num_computed for state in engine._engine.running])
    assert left == [[], [2]]


def test_whole_items_across_a_boundary_are_refused(image) -> None:
    engine = aligned(disable_chunked_mm_input=True)
    engine.add_request(request("a", 16, image("x", 4, 4)))
    with pytest.raises(InputError, match="chunks end at blocks of 4"):
        engine.add_request(request("b", 16, image("x", 3, 4)))
