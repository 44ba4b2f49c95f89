"""Encoder inputs: which items a chunk needs, what stops it, what is shared, loaded or refused."""

from __future__ import annotations

import pytest

from epdsim.core.caches.encoder_cache import MISMATCH
from epdsim.core.ec.connector import SharedStore
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.rules import GIVE_BACK
from epdsim.core.scheduler.scheduler import Scheduler


def scheduler(dialect=IDEAL, ec=None, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 65,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect, ec)


def request(name: str, length: int, *features, max_tokens: int = 2, **fields) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features, **fields)


def step(engine: Scheduler):
    plan = engine.schedule()
    engine.update_from_output(plan)
    return plan


def test_an_item_is_encoded_when_a_chunk_reaches_it(image) -> None:
    engine = scheduler(max_num_batched_tokens=8)
    engine.add_request(request("a", 20, image("x", 2, 4), image("y", 10, 4)))
    assert [dict(step(engine).scheduled_encoder_inputs) for _ in range(3)] == [{"a": [0]}, {"a": [1]}, {}]


def test_a_chunk_without_embeddings_of_the_item_needs_no_encoder_run(image) -> None:
    engine = scheduler(max_num_batched_tokens=8)
    engine.add_request(request("a", 16, image("x", 4, 8, [0, 0, 0, 0, 0, 1, 1, 0])))
    assert [dict(step(engine).scheduled_encoder_inputs) for _ in range(2)] == [{}, {"a": [0]}]


def test_a_chunk_stops_before_an_item_beyond_the_encoder_budget(image) -> None:
    engine = scheduler(max_num_encoder_input_tokens=6, encoder_cache_size=64)
    engine.add_request(request("a", 16, image("x", 1, 4), image("y", 6, 4)))
    plans = [step(engine), step(engine)]
    assert [plan.num_scheduled_tokens["a"] for plan in plans] == [6, 10]
    assert [dict(plan.scheduled_encoder_inputs) for plan in plans] == [{"a": [0]}, {"a": [1]}]


def test_a_chunk_stops_before_an_item_that_the_cache_cannot_hold_yet(image) -> None:
    engine = scheduler(encoder_cache_size=4)
    engine.add_request(request("a", 16, image("x", 1, 4), image("y", 6, 4)))
    plans = [step(engine), step(engine)]
    assert [plan.num_scheduled_tokens["a"] for plan in plans] == [6, 10]
    assert list(plans[1].free_encoder_mm_hashes) == ["x"]


def test_the_budget_is_shared_by_all_requests_of_a_step(image) -> None:
    engine = scheduler(max_num_encoder_input_tokens=6, encoder_cache_size=64)
    engine.add_request(request("a", 6, image("x", 1, 4)))
    engine.add_request(request("b", 6, image("y", 1, 4)))
    plan = step(engine)
    assert dict(plan.num_scheduled_tokens) == {"a": 6, "b": 1}
    assert dict(plan.scheduled_encoder_inputs) == {"a": [0]}


def test_one_item_twice_in_a_chunk_is_encoded_once(image) -> None:
    engine = scheduler()
    engine.add_request(request("a", 12, image("x", 0, 4), image("x", 6, 4)))
    assert dict(step(engine).scheduled_encoder_inputs) == {"a": [0]}


def test_an_item_of_another_request_is_shared(image) -> None:
    engine = scheduler(enable_prefix_caching=False)
    engine.add_request(request("a", 6, image("x", 1, 4)))
    engine.add_request(request("b", 7, image("x", 2, 4)))
    assert dict(step(engine).scheduled_encoder_inputs) == {"a": [0]}
    assert engine._engine.encoder_cache.num_free == 8192 - 4


def test_items_in_a_known_prefix_are_not_encoded(image, run) -> None:
    engine = scheduler()
    engine.add_request(request("a", 9, image("x", 1, 4)))
    run(engine)
    engine.reset_encoder_cache()
    engine.add_request(request("b", 9, image("x", 1, 4)))
    assert dict(step(engine).scheduled_encoder_inputs) == {}


def test_a_hit_into_an_item_encodes_it_again(image, run) -> None:
    engine = scheduler()
    engine.add_request(request("a", 12, image("x", 2, 8)))
    run(engine)
    engine.reset_encoder_cache()
    engine.add_request(request("b", 10, image("x", 2, 8)))
    plan = step(engine)
    assert plan.new[0].num_computed_tokens == 8
    assert dict(plan.scheduled_encoder_inputs) == {"b": [0]}


class TestWholeItems:
    """Chunked media input off (CHUNK-WHOLE, vLLM issue 52306)."""

    def test_a_chunk_rolls_back_to_the_start_of_an_item(self, image) -> None:
        engine = scheduler(disable_chunked_mm_input=True, max_num_batched_tokens=8)
        engine.add_request(request("a", 16, image("x", 4, 8)))
        assert [step(engine).num_scheduled_tokens["a"] for _ in range(3)] == [4, 8, 4]

    def test_an_item_whose_turn_has_come_waits_for_a_whole_budget(self, image, text) -> None:
        engine = scheduler(disable_chunked_mm_input=True, max_num_batched_tokens=8)
        engine.add_request(text("busy", 3, 3))
        engine.add_request(request("a", 16, image("x", 4, 8)))
        assert [dict(step(engine).num_scheduled_tokens) for _ in range(4)] == [
            {"busy": 3, "a": 4},
            {"busy": 1},
            {"busy": 1},
            {"a": 8},
        ]

    def test_releases_split_it_there(self, image, text) -> None:
        engine = scheduler(named("vllm-0.32"), disable_chunked_mm_input=True, max_num_batched_tokens=8)
        engine.add_request(text("busy", 3, 3))
        engine.add_request(request("a", 16, image("x", 4, 8)))
        assert [dict(step(engine).num_scheduled_tokens) for _ in range(2)] == [{"busy": 3, "a": 4}, {"busy": 1, "a": 7}]


class TestNoLeak:
    """A waiting request that gets encoder slots but no KV blocks (vLLM PR 31857)."""

    def engine(self, image, text, dialect=IDEAL) -> Scheduler:
        engine = scheduler(dialect, num_gpu_blocks=6, encoder_cache_size=8, enable_prefix_caching=False)
        engine.add_request(request("first", 6, image("x", 0, 4), max_tokens=1))
        step(engine)
        engine.add_request(text("busy", 9, 4))
        step(engine)
        engine.add_request(request("waits", 14, image("x", 0, 4)))
        step(engine)
        assert engine.waiting == ["waits"]
        return engine

    def test_it_gives_them_back(self, image, text) -> None:
        assert not self.engine(image, text)._engine.encoder_cache.users("x")

    def test_the_defect_keeps_them(self, image, text) -> None:
        leaky = IDEAL.replacing("leaky", {GIVE_BACK.name: Replacement(lambda: False, "before PR 31857")})
        assert set(self.engine(image, text, leaky)._engine.encoder_cache.users("x")) == {"waits"}


class TestMismatch:
    """One identifier with two numbers of embeddings (vLLM issue 55547): that request fails, and no other."""

    def test_a_cached_entry_of_another_size_fails_the_request(self, image, text) -> None:
        engine = scheduler(enable_prefix_caching=False)
        engine.add_request(request("a", 6, image("x", 1, 4)))
        step(engine)
        engine.add_request(request("b", 8, image("x", 1, 6)))
        engine.add_request(text("c", 4))
        plan = engine.schedule()
        outcome = engine.update_from_output(plan)
        assert list(outcome.failed) == ["b"]
        assert dict(plan.num_scheduled_tokens) == {"a": 1}
        plan = step(engine)
        assert list(plan.finished) == ["a", "b"]
        assert dict(plan.num_scheduled_tokens) == {"c": 4}

    def test_two_sizes_in_one_request_fail_it(self, image) -> None:
        engine = scheduler()
        engine.add_request(request("a", 12, image("x", 0, 4), image("x", 5, 5)))
        plan = engine.schedule()
        assert list(engine.update_from_output(plan).failed) == ["a"]
        assert not engine.has_unfinished

    def test_releases_up_to_0_30_take_what_is_there(self, image) -> None:
        engine = scheduler(named("vllm-0.30"), enable_prefix_caching=False)
        engine.add_request(request("a", 6, image("x", 1, 4)))
        step(engine)
        engine.add_request(request("b", 8, image("x", 1, 6)))
        assert "b" in step(engine).num_scheduled_tokens
        assert named("vllm-0.31")[MISMATCH](4, 6)


class TestEcStore:
    @pytest.mark.parametrize(
        ("role", "inputs", "loads"),
        [("none", {"a": [0]}, []), ("consumer", {}, ["x"]), ("both", {}, ["x"]), ("producer", {}, [])],
    )
    @pytest.mark.parametrize("is_known_to", ["request", "engine"])
    def test_a_stored_item_is_loaded_by_a_consumer_and_never_encoded(
        self, image, role: str, inputs: dict[str, list[int]], loads: list[str], is_known_to: str
    ) -> None:
        in_request = frozenset("x" if is_known_to == "request" else "")
        store = SharedStore(role, {"x"}) if is_known_to == "engine" and role != "none" else None
        engine = scheduler(ec_role=role, ec=store)
        engine.add_request(request("a", 8, image("x", 1, 4), remote_embeds=in_request))
        plan = step(engine)
        assert (dict(plan.scheduled_encoder_inputs), list(plan.ec_loads)) == (inputs, loads)

    def test_an_item_is_loaded_once_for_two_requests(self, image) -> None:
        engine = scheduler(ec_role="consumer", enable_prefix_caching=False)
        for name in "ab":
            engine.add_request(request(name, 8, image("x", 1, 4), remote_embeds=frozenset("x")))
        assert list(step(engine).ec_loads) == ["x"]
        assert list(step(engine).ec_loads) == []

    def test_a_load_takes_no_compute_budget(self, image) -> None:
        engine = scheduler(ec_role="consumer", max_num_encoder_input_tokens=4)
        engine.add_request(request("a", 12, image("x", 0, 4), image("y", 6, 4), remote_embeds=frozenset("x")))
        plan = step(engine)
        assert (dict(plan.scheduled_encoder_inputs), list(plan.ec_loads)) == ({"a": [1]}, ["x"])

    def test_a_store_that_grows_is_seen(self, image) -> None:
        store: set[str] = set()
        engine = scheduler(ec=SharedStore("consumer", store), max_num_batched_tokens=4)
        engine.add_request(request("a", 12, image("x", 5, 4)))
        step(engine)
        store.add("x")
        assert list(step(engine).ec_loads) == ["x"]
