"""The model's EC connector that is pushed to beside the release's own: skipped where there is no vLLM (make vllm installs it)."""

from __future__ import annotations

import importlib.util

import pytest

from epdsim.core.ec.push import LOCAL
from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect, Replacement
from epdsim.sut.vllm.ec_push import compare_pushed
from epdsim.sut.vllm.release import load

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
)


@pytest.fixture(scope="module")
def dialect() -> Dialect:
    release = load().version
    if not release.startswith("0.32."):
        pytest.skip(f"the connector is compared with 0.32, installed is {release}")
    return named(f"vllm-{release}")


def test_the_connector_answers_as_the_model(dialect: Dialect) -> None:
    report = compare_pushed(range(200), dialect)
    assert report.differences == []
    reached = ("waits", "is here", "load", "load failed", "push", "cancelled", "request failed")
    assert not [what for what in reached if not report.reached.get(what)]


def test_a_changed_answer_is_seen(dialect: Dialect) -> None:
    """The comparison is sharp: with an item that is encoded where the release waits for it the two differ."""
    changed = dialect.replacing("changed", {LOCAL.name: Replacement(lambda _feature: True, "on purpose")})
    assert compare_pushed(range(20), changed).differences
