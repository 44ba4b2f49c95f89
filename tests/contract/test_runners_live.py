"""The model's worker beside the runners of the vLLM that is installed: skipped where there is none (make vllm installs it)."""

from __future__ import annotations

import importlib.util

import pytest

from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect
from epdsim.sut.vllm.release import load
from epdsim.sut.vllm.runner_comparison import RUNNER_MODES, compare_runners

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
)
V1_WITH_RESUMES = ("v1-hash", "v1-remote")
"""Modes in which v1 engines of the release are lost within the seeds below."""


@pytest.fixture(scope="module")
def release() -> str:
    version = load().version
    if not version.startswith("0.32."):
        pytest.skip(f"the runners are compared with 0.32, installed is {version}")
    return version


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_runner_holds_what_the_models_worker_holds(release: str, runner: str) -> None:
    report = compare_runners([mode for mode in RUNNER_MODES if mode.startswith(runner)], range(1), release)
    assert report.differences == []
    for what in ("embeddings", "encoded", "others"):
        assert report.reached[f"steps with {what}"]


def test_v1_engines_of_the_release_are_lost_where_the_model_says_so(release: str) -> None:
    report = compare_runners(V1_WITH_RESUMES, range(4), release)
    assert report.differences == []
    assert report.reached["engine lost at a gather"] == report.reached["workloads with ENC-HIT"]
    assert report.reached["workloads with STRIP-AVAIL"]


def test_a_worker_that_is_sent_what_it_lacks_is_seen(release: str) -> None:
    """The comparison is sharp: with the ideal resume the model's worker encodes what the release's cannot."""
    replacements = named(f"vllm-{release}").replacements
    dialect = Dialect("resends", {name: one for name, one in replacements.items() if name != "strip.resumed"})
    assert compare_runners(V1_WITH_RESUMES, range(4), release, dialect).differences
