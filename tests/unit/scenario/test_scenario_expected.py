"""What a run cannot have is refused before it is run, and what it can have is not."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.scenario import study
from epdsim.scenario.claims import compare
from epdsim.scenario.study import run_scenario

TEXT = {"kind": "fixed", "requests": [{"id": "r", "output_tokens": 1, "parts": [{"text_tokens": 50}]}]}
APART = {"topology": "e+p+d"}


def published(metric):
    return [{"at": {}, "metric": metric, "value": 3}]


@pytest.mark.parametrize(
    ("metric", "more", "told"),
    [
        ("tpot_ms", {"workload": TEXT}, "no request has two output tokens"),
        ("tpot_ms.p99", {"workload": TEXT}, "no request has two output tokens"),
        ("encode_run_ms", {"workload": TEXT}, "no request has media"),
        ("recovery_ms.p99", {}, "no instance is lost"),
        ("ec_loads", {}, "the fleet has no encode instances"),
        ("kv_bytes", {"fleet": {"topology": "e+pd"}}, "the fleet has no decode instances"),
        ("leg_bytes.decode", {}, "its legs are aggregated"),
        ("leg_bytes.aggregated", {"fleet": APART}, "its legs are encode, prefill, decode"),
        ("busy_ms.encode-1", {"fleet": APART}, "its instances are encode-0, prefill-0, decode-0"),
        ("busy_ms.prefill-0", {}, "its instances are engine-0"),
    ],
)
def test_a_published_figure_that_the_run_cannot_have(scenario, monkeypatch, metric, more, told) -> None:
    monkeypatch.setattr(study, "run_job", lambda *_, **__: pytest.fail("it is run"))
    with pytest.raises(
        InputError, match=rf"key 'published\.0': the run has no {metric}: {told}; ask for another figure"
    ):
        run_scenario(scenario(published=published(metric), **more))


def test_warm_ups_have_no_latency(scenario) -> None:
    warm = {"kind": "fixed", "requests": [TEXT["requests"][0] | {"slo_class": "warm-up"}]}
    with pytest.raises(InputError, match=r"the run has no ttft_ms\.p50: all requests are warm-ups"):
        run_scenario(scenario(published=published("ttft_ms.p50"), workload=warm))


@pytest.mark.parametrize("kind", ["gap", "equal"])
def test_a_claim_on_such_a_figure(scenario, kind) -> None:
    claims = {
        "gap": {"kind": "gap", "metric": "tpot_ms", "high": {"n": 1}, "low": {"n": 2}, "published": 1, "within": 1},
        "equal": {"kind": "equal", "metrics": ["completed", "tpot_ms"], "where": {}, "across": "n"},
    }
    axes = {"n": "workload.requests.0.parts.0.text_tokens"}
    with pytest.raises(
        InputError, match=r"claims\.0': the run at n 1 has no tpot_ms: no request has two output tokens"
    ):
        run_scenario(scenario(workload=TEXT, axes=axes, runs=[{"n": [1, 2]}], claims=[claims[kind]]))


@pytest.mark.parametrize(
    "metric",
    [
        *("ttft_ms.p99", "tpot_ms", "encode_run_ms", "ec_loads", "ec_bytes", "encoded_items", "render_ms"),
        *("leg_bytes.encode", "leg_bytes.prefill", "leg_bytes.decode", "busy_ms.encode-0", "busy_ms.decode-0"),
    ],
)
def test_what_a_run_can_have_it_has(scenario, metric) -> None:
    (row,) = compare(run_scenario(scenario(published=published(metric), fleet=APART)))
    assert row.simulated > 0


def test_zero_is_equal_to_zero(scenario) -> None:
    """A claim of equality is met by figures that are 0 in every run."""
    claim = {"kind": "equal", "metrics": ["ec_loads", "leg_bytes"], "where": {}, "across": "n"}
    axes = {"n": "fleet.prefill.tp"}
    run_scenario(scenario(axes=axes, runs=[{"n": [1, 2]}], claims=[claim]))
