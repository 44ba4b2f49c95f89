"""Clones and fingerprints."""

from __future__ import annotations

from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler


def scheduler(**settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 17,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 64,
    }
    return Scheduler(SchedulerConfig(**defaults | settings))


def test_a_digest_is_blind_to_the_numbers_of_blocks(text) -> None:
    one, other = scheduler(num_gpu_blocks=3), scheduler(num_gpu_blocks=3)
    one.add_request(text("a", 7, 2))
    other._engine.pool.release(other._engine.pool.take(2))
    other.add_request(text("a", 7, 2))
    one.schedule()
    other.schedule()
    assert one._engine.requests["a"].blocks != other._engine.requests["a"].blocks
    assert one.fingerprint() == other.fingerprint()


def test_a_digest_sees_the_content_of_known_blocks(text, run) -> None:
    digests = set()
    for content in ("x", "y"):
        engine = scheduler()
        engine.add_request(text("a", 8, 1, content=content))
        run(engine)
        digests.add(engine.fingerprint())
    assert len(digests) == 2


def test_a_digest_changes_with_every_step(text) -> None:
    engine = scheduler()
    engine.add_request(text("a", 20, 3))
    digests = [engine.fingerprint()]
    while engine.has_unfinished:
        plan = engine.schedule()
        digests.append(engine.fingerprint())
        engine.update_from_output(plan)
        digests.append(engine.fingerprint())
    # A chunk of a prompt yields nothing: its update only tells that nothing is in flight any more.
    assert len(set(digests)) == len(digests)


def test_a_digest_does_not_count_steps() -> None:
    engine, other = scheduler(), scheduler()
    engine.schedule()
    assert engine.fingerprint() == other.fingerprint()


def test_keys_that_nobody_knows_are_forgotten(run) -> None:
    engine = scheduler(num_gpu_blocks=9)
    for number in range(200):
        engine.add_request(Request(f"r{number}", RunPrompt([TokenRun("shared", 0, 8), TokenRun(number, 0, 16)]), 1))
        run(engine)
    assert len(engine._engine.table) <= 8 * 9 + 6
    engine.add_request(Request("last", RunPrompt([TokenRun("shared", 0, 8), TokenRun("new", 0, 4)]), 1))
    assert engine.schedule().new[0].num_cached_tokens == 8
