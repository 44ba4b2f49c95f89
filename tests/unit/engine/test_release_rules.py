"""Rules of the engine that older releases decide otherwise: each beside the ideal, on the smallest case that shows it."""

from __future__ import annotations

import pytest

from epdsim.core.caches.encoder_cache import CREDIT, FREED_REPORT, LAST_OCCURRENCE, EncoderCache
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv.blocks import REUSE, BlockPool
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.rules import CURSOR, GUARD, REPEATS
from epdsim.core.scheduler.scheduler import Scheduler

MINOR = {f"vllm-0.{minor}": minor for minor in range(25, 34)}
releases = pytest.mark.parametrize("name", ["ideal", *MINOR])


def does_so(name: str, last: int) -> bool:
    """Whether a release is one of those up to 0.`last`."""
    return MINOR.get(name, 99) <= last


def scheduler(dialect: Dialect, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 65,
        "max_num_batched_tokens": 12,
        "max_num_seqs": 4,
        "max_model_len": 128,
        "encoder_cache_size": 4,
        "max_num_encoder_input_tokens": 4,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


def request(name: str, length: int, *features: MediaFeature, max_tokens: int = 2, **fields) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features, **fields)


def step(engine: Scheduler):
    plan = engine.schedule()
    engine.update_from_output(plan)
    return plan


@releases
def test_a_repeat_in_the_step_of_the_run_is_held(image, name: str) -> None:
    """Chunk 1 has the first occurrence and half of the second; another request needs the room before chunk 2."""
    engine = scheduler(named(name), max_num_batched_tokens=8)
    engine.add_request(request("a", 16, image("x", 0, 4), image("x", 6, 4)))
    assert dict(step(engine).scheduled_encoder_inputs) == {"a": [0]}
    assert (list(engine._engine.encoder_cache.users("x")) == ["a"]) is (not does_so(name, 31))
    assert named(name)[REPEATS]() is (not does_so(name, 31))


@releases
def test_an_item_that_is_cached_is_not_split_either(image, name: str) -> None:
    engine = scheduler(named(name), max_num_batched_tokens=8, disable_chunked_mm_input=True)
    engine.add_request(request("a", 4, image("x", 0, 4), max_tokens=1))
    step(engine)
    engine.add_request(Request("b", TokenPrompt([3] * 6 + [7] * 4), 1, (image("x", 6, 4),)))
    assert dict(step(engine).num_scheduled_tokens) == {"b": 8 if does_so(name, 31) else 6}
    assert named(name)[GUARD]() is (not does_so(name, 31))


@releases
def test_an_entry_gives_back_what_it_took(name: str) -> None:
    """Only with releases that let an entry serve another number of embeddings do the two differ."""
    cache = EncoderCache(8, named(name))
    four, two = (MediaFeature("image", "x", PlaceholderRange(0, length)) for length in (4, 2))
    assert cache.make_room(4)
    cache.allocate("a", [four], 0, 4)
    assert cache.reference("b", [two], 0)
    cache.release_all("a", [four])
    cache.release_all("b", [two])
    assert cache.num_freeable == (6 if does_so(name, 30) else 8)
    assert named(name)[CREDIT](4, two.position) == (2 if does_so(name, 30) else 4)


@releases
def test_an_entry_is_held_until_the_last_occurrence(name: str) -> None:
    cache = EncoderCache(4, named(name))
    features = [MediaFeature("image", "x", PlaceholderRange(start, 4)) for start in (0, 8)]
    assert cache.make_room(4)
    cache.allocate("a", features, 0, 4)
    assert cache.reference("a", features, 1)
    cache.release_past("a", features, 5)
    assert list(cache.users("x")) == ([] if does_so(name, 28) else ["a"])
    assert named(name)[LAST_OCCURRENCE]("x", ["x"]) is does_so(name, 28)


@releases
def test_what_is_encoded_again_is_not_reported_as_freed(name: str) -> None:
    cache = EncoderCache(4, named(name))
    for identifier in "xyx":
        feature = MediaFeature("image", identifier, PlaceholderRange(0, 4))
        assert cache.make_room(4)
        cache.allocate("a", [feature], 0, 4)
        cache.release_all("a", [feature])
    assert cache.take_freed() == (["x", "y"] if does_so(name, 27) else ["y"])
    assert list(named(name)[FREED_REPORT](["x"], ["x"])) == (["x"] if does_so(name, 27) else [])


@releases
def test_a_preemption_makes_nobody_miss_a_turn(image, name: str) -> None:
    """`slow` runs ahead of the others, waits for encoder room and loses its block to `needy`; then it is `last`'s turn."""
    engine = scheduler(
        named(name), policy="priority", num_gpu_blocks=4, enable_prefix_caching=False, scheduler_reserve_full_isl=False
    )
    cache = engine._engine.encoder_cache
    assert cache.make_room(4)
    cache.allocate("someone", [image("z", 0, 4)], 0, 4)
    engine.add_request(request("slow", 8, image("x", 4, 4), priority=9))
    step(engine)
    engine.add_request(request("needy", 4, priority=1))
    engine.add_request(request("last", 2, priority=2))
    step(engine)
    assert engine.running == ["slow", "needy", "last"]
    plan = step(engine)
    assert list(plan.preempted) == ["slow"]
    assert list(plan.num_scheduled_tokens) == (["needy"] if does_so(name, 27) else ["needy", "last"])


@pytest.mark.parametrize("was_scheduled", [False, True])
@releases
def test_the_cursor_stays_with_the_needy_request(name: str, *, was_scheduled: bool) -> None:
    """A victim behind it moves nothing; one ahead moves it by one, also when it had got nothing."""
    cursor = named(name)[CURSOR]
    assert cursor(2, 3, was_scheduled=False) == 2
    assert cursor(2, 0, was_scheduled=was_scheduled) == (2 if does_so(name, 27) and not was_scheduled else 1)


@releases
def test_without_prefix_cache_a_freed_block_is_the_next_to_be_taken(name: str) -> None:
    """PR 48017 turned the order round, which is in 0.27 alone (PR 51482)."""
    pool = BlockPool(6, enable_caching=False, dialect=named(name))
    table = pool.take(2)
    pool.release(table)
    turned = name == "vllm-0.27"
    assert pool.free_queue() == ([3, 4, 5, 2, 1] if turned else [2, 1, 3, 4, 5])
    assert named(name)[REUSE]() is (not turned)
