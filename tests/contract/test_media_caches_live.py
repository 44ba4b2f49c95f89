"""The model's media caches beside those of the vLLM that is installed: skipped where there is none (make vllm installs it)."""

from __future__ import annotations

import importlib.util

import pytest

from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect, Replacement
from epdsim.sut.vllm.mirrored_caches import CacheReport, compare_mirrored
from epdsim.sut.vllm.release import load
from epdsim.sut.vllm.shared_memory_cache import compare_shared_memory

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
)


@pytest.fixture(scope="module")
def dialect() -> Dialect:
    release = load().version
    if not release.startswith("0.32."):
        pytest.skip(f"the caches are compared with 0.32, installed is {release}")
    return named(f"vllm-{release}")


def check(report: CacheReport, *reached: str) -> None:
    assert report.differences == []
    assert not [what for what in reached if not report.reached.get(what)]


def test_the_mirrored_caches_do_as_the_model(dialect: Dialect) -> None:
    report = compare_mirrored(range(80), dialect)
    check(report, "by hash only", "miss", "sides differ", "lost at the front end", "reject", "reset", "finish reset")


def test_the_shared_memory_cache_does_as_the_model(dialect: Dialect) -> None:
    report = compare_shared_memory(range(40), dialect)
    check(report, "sent inline", "sent by address", "stale address", "request read again", "reset")


@pytest.mark.parametrize("rule", ["mm_cache.order", "mm_cache.pushed_out", "mm_cache.moves", "mm_cache.reset"])
def test_a_changed_rule_of_the_mirrored_caches_is_seen(dialect: Dialect, rule: str) -> None:
    """The comparison is sharp: with the ideal in place of what the release does it is not equal."""
    assert compare_mirrored(range(20), without(dialect, rule)).differences


@pytest.mark.parametrize("rule", ["mm_cache.order", "shm_cache.acknowledge", "shm_cache.reset"])
def test_a_changed_rule_of_the_shared_memory_cache_is_seen(dialect: Dialect, rule: str) -> None:
    assert compare_shared_memory(range(20), without(dialect, rule)).differences


def test_what_older_releases_did_is_seen(dialect: Dialect) -> None:
    older = named("vllm-0.31").replacements
    for rule in ("shm_cache.touch", "shm_cache.reset"):
        assert compare_shared_memory(range(20), dialect.replacing(rule, {rule: older[rule]})).differences
    for rule in ("mm_cache.fresh", "mm_cache.miss", "mm_cache.oversize"):
        replacement: Replacement = named("vllm-0.25").replacements[rule]
        assert compare_mirrored(range(20), dialect.replacing(rule, {rule: replacement})).differences


def without(dialect: Dialect, rule: str) -> Dialect:
    """The dialect with the ideal of one rule."""
    assert rule in dialect.replacements
    return Dialect(f"{dialect.name} without {rule}", {k: v for k, v in dialect.replacements.items() if k != rule})
