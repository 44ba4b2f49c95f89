"""Encoder-decoder models: items beside the prompt, encoded with the first step, read through blocks of their own."""

from __future__ import annotations

import pytest

from epdsim.core.caches.encoder_decoder_cache import CREDIT_ONCE, EncoderDecoderCache
from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

MODE = {"is_encoder_decoder": True, "enable_prefix_caching": False, "enable_chunked_prefill": False}
RELEASES = [f"vllm-0.{minor}" for minor in range(25, 34)]


def config(**settings) -> SchedulerConfig:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 65,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "max_model_len": 32,
        "encoder_cache_size": 8,
        "max_num_encoder_input_tokens": 8,
    }
    return SchedulerConfig(**defaults | MODE | settings)


def sound(identifier: str, length: int, offset: int = 0) -> MediaFeature:
    return MediaFeature("audio", identifier, PlaceholderRange(offset, length))


def request(name: str, length: int, *features: MediaFeature, max_tokens: int = 3, **fields) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features, **fields)


def step(engine: Scheduler):
    plan = engine.schedule()
    engine.update_from_output(plan)
    return plan


def test_items_are_encoded_with_the_first_step_whatever_their_length() -> None:
    engine = Scheduler(config())
    engine.add_request(request("a", 3, sound("x", 6), sound("y", 2)))
    first, *later = [step(engine) for _ in range(3)]
    assert dict(first.num_scheduled_tokens) == {"a": 3}
    assert dict(first.scheduled_encoder_inputs) == {"a": [0, 1]}
    assert not any(plan.scheduled_encoder_inputs for plan in later)
    assert not engine.has_unfinished


def test_cross_attention_has_blocks_until_the_request_ends() -> None:
    """Two blocks for 3 + 2 known tokens, two for 8 embeddings; they come back last in, first out, those across last."""
    engine = Scheduler(config())
    engine.add_request(request("a", 3, sound("x", 8)))
    (new,) = step(engine).new
    assert (list(new.block_ids), list(new.cross_block_ids)) == ([1], [2, 3])
    plan = step(engine)
    assert (plan.cached[0].new_block_ids, plan.cached[0].cross_block_ids) == (None, ())
    assert step(engine).cached[0].new_block_ids == [4]
    assert engine._engine.pool.free_queue()[:4] == [3, 2, 4, 1]


def test_a_request_without_items_needs_none() -> None:
    engine = Scheduler(config())
    engine.add_request(request("a", 3))
    (new,) = step(engine).new
    assert (list(new.block_ids), new.cross_block_ids) == ([1], ())


def test_it_waits_for_both_kinds_of_blocks() -> None:
    engine = Scheduler(config(num_gpu_blocks=6))
    engine.add_request(request("a", 4, sound("x", 4), max_tokens=1))
    engine.add_request(request("b", 8, sound("y", 4), max_tokens=1))
    engine.add_request(request("c", 4, sound("z", 4), max_tokens=1))
    assert [list(step(engine).num_scheduled_tokens) for _ in range(2)] == [["a", "b"], ["c"]]


def test_what_one_step_encodes_the_workers_drop_with_the_next() -> None:
    engine = Scheduler(config())
    engine.add_request(request("a", 3, sound("x", 4)))
    assert [list(step(engine).free_encoder_mm_hashes) for _ in range(3)] == [[], ["x"], []]


def test_no_request_finds_what_another_encoded() -> None:
    engine = Scheduler(config())
    for name in "ab":
        engine.add_request(request(name, 3, sound("x", 4)))
    assert dict(step(engine).scheduled_encoder_inputs) == {"a": [0], "b": [0]}
    assert list(step(engine).free_encoder_mm_hashes) == ["x", "x"]


def test_a_step_encodes_as_much_as_cache_and_budget_allow() -> None:
    for limits in ({"encoder_cache_size": 6}, {"max_num_encoder_input_tokens": 6}):
        engine = Scheduler(config(**limits))
        for name in "ab":
            engine.add_request(request(name, 3, sound(name, 4)))
        assert [list(step(engine).scheduled_encoder_inputs) for _ in range(2)] == [["a"], ["b"]]


def test_a_preempted_request_encodes_again_and_gets_new_blocks_across() -> None:
    engine = Scheduler(config(num_gpu_blocks=6))
    for name in "ab":
        engine.add_request(request(name, 4, sound(name, 4), max_tokens=5))
    plans = [step(engine) for _ in range(2)]
    while not plans[-1].preempted and engine.has_unfinished:
        plans.append(step(engine))
    assert list(plans[-1].preempted) == ["b"]
    while not plans[-1].scheduled_encoder_inputs:
        plans.append(step(engine))
    (row,) = plans[-1].cached
    assert (row.resumed, row.num_computed_tokens, len(row.cross_block_ids)) == (True, 0, 1)
    assert dict(plans[-1].scheduled_encoder_inputs) == {"b": [0]}
    while engine.has_unfinished:
        step(engine)
    assert engine.free_blocks == 5


def test_drafts_are_verified_beside_cross_attention() -> None:
    engine = Scheduler(config(speculative_method="ngram", num_speculative_tokens=3))
    engine.add_request(request("a", 3, sound("x", 6), max_tokens=6))
    step(engine)
    engine.update_draft_tokens({"a": 3})
    plan = engine.schedule()
    assert (dict(plan.num_scheduled_tokens), dict(plan.num_scheduled_spec_tokens)) == ({"a": 4}, {"a": 3})
    assert not plan.scheduled_encoder_inputs
    engine.update_from_output(plan, {"a": [1, 1]})
    (row,) = engine.schedule().cached
    assert row.num_computed_tokens == 5  # three of the prompt, two tokens; two drafts are taken back


def test_no_drafter_that_reads_ahead_serves_an_encoder_decoder_model() -> None:
    with pytest.raises(InputError, match="reads ahead"):
        config(speculative_method="eagle", num_speculative_tokens=3)


@pytest.mark.parametrize("name", ["ideal", *RELEASES])
def test_room_comes_back_once(name: str) -> None:
    """The release credits it with each step, so that more is free than there is (vLLM issue 55733)."""
    engine = Scheduler(config(), named(name))
    engine.add_request(request("a", 3, sound("x", 6), max_tokens=4))
    free = []
    while engine.has_unfinished:
        step(engine)
        free.append(engine._engine.encoder_cache.num_free)
    assert free == ([8, 8, 8, 8] if name == "ideal" else [8, 14, 20, 32])
    assert named(name)[CREDIT_ONCE]() is (name == "ideal")


@pytest.mark.parametrize("name", ["ideal", *RELEASES])
def test_who_is_not_admitted_gives_back_what_it_had(name: str) -> None:
    cache = EncoderDecoderCache(8, named(name))
    cache.release_all("waits", [sound("x", 4)])
    assert cache.num_free == (8 if name == "ideal" else 12)


@pytest.mark.parametrize("name", ["ideal", *RELEASES])
def test_after_a_reset_no_room_is_credited_for_what_was_encoded_before(name: str) -> None:
    """In the release every later step of such a request credits its items still."""
    engine = Scheduler(config(), named(name))
    engine.add_request(request("a", 3, sound("x", 6), max_tokens=3))
    plan = engine.schedule()
    engine.reset_encoder_cache()
    engine.update_from_output(plan)
    free = [engine._engine.encoder_cache.num_free]
    while engine.has_unfinished:
        step(engine)
        free.append(engine._engine.encoder_cache.num_free)
    assert free == ([8, 8, 8] if name == "ideal" else [14, 20, 32])


def test_the_cache_can_be_reset_and_withdraws() -> None:
    cache = EncoderDecoderCache(8, IDEAL)
    features = [sound("x", 4), sound("y", 2)]
    for index, size in enumerate((4, 2)):
        assert cache.make_room(size)
        cache.allocate("a", features, index, size)
    assert not cache.make_room(3)
    assert not cache.reference("b", features, 0)
    twin = cache.clone()
    assert twin.fingerprint() == cache.fingerprint()
    cache.release("a", features, 1)
    cache.forget("y")
    cache.forget("never")
    assert (cache.num_free, cache.take_freed(), cache.take_freed()) == (4, [], ["x"])
    assert twin.num_free == 2
    assert twin.fingerprint() != cache.fingerprint()
    cache.reset()
    cache.release_all("a", features)
    assert (cache.num_free, cache.take_freed(), cache.take_freed()) == (8, [], [])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"enable_prefix_caching": True}, "enable_prefix_caching"),
        ({"enable_chunked_prefill": True}, "enable_chunked_prefill"),
        ({"long_prefill_token_threshold": 4}, "long_prefill_token_threshold"),
        ({"mm_encoder_only": True}, "mm_encoder_only"),
        ({"ec_role": "consumer"}, "ec_role 'consumer'"),
    ],
)
def test_settings_that_the_mode_excludes_are_told(settings: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        config(**settings)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (request("a", 8, sound("x", 4, offset=2)), "an item at offset 2"),
        (request("a", 8, sound("x", 4), sound("y", 5)), "items of 9 embeddings"),
        (request("a", 20, max_tokens=9), "of 28 tokens to compute"),
        (request("a", 17, sound("x", 8), max_tokens=4), "needs 7 blocks"),
    ],
)
def test_a_request_that_no_schedule_could_finish_is_told(asked: Request, says: str) -> None:
    engine = Scheduler(
        config(num_gpu_blocks=8 if "28" in says else 7, max_num_batched_tokens=24, disable_chunked_mm_input=True)
    )
    with pytest.raises(InputError, match=says):
        engine.add_request(asked)
    assert not engine.has_unfinished


def test_a_long_item_is_no_matter_of_chunks() -> None:
    """With chunked media input off an item may be longer than a step, for its tokens are not the decoder's."""
    settings = {"max_num_batched_tokens": 4, "max_num_encoder_input_tokens": 8, "disable_chunked_mm_input": True}
    engine = Scheduler(config(**settings))
    engine.add_request(request("a", 2, sound("x", 8), max_tokens=1))
    assert dict(step(engine).scheduled_encoder_inputs) == {"a": [0]}
