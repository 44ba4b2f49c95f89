"""`epdsim plan` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PLAN = """
slo: {ttft_ms.p99: 60, tpot_ms.p99: 8}
plan:
  pools: {fleet.encode.count: {high: 3}, fleet.prefill.count: {high: 3}, fleet.decode.count: {high: 2}}
  check: {workload.num_requests: 20}
"""


@pytest.fixture
def scenario():
    text = Path("small.yaml").read_text()
    text = text[: text.index("runs:")].replace("rate_req_s: 20", "rate_req_s: 60")
    Path("plan.yaml").write_text(text + PLAN)
    return "plan.yaml"


def test_the_answer_its_neighbours_and_what_binds(epdsim, scenario):
    done = epdsim("plan", scenario, "--json", "--processes", "1")
    assert (done.code, done.err) == (0, "")
    (one,) = json.loads(done.out)
    assert one["answer"]["meets"]
    assert one["answer"]["metrics"]["ttft_ms"]["p99"] <= 60
    assert not any(trial["meets"] for trial in one["neighbours"])
    fleet = one["answer"]["fleet"]
    assert (
        one["answer"]["gpus"]
        == fleet["fleet.encode.count"] + 2 * fleet["fleet.prefill.count"] + fleet["fleet.decode.count"]
    ), "engines that prefill have tp 2"
    assert one["binds"] in {"encode", "prefill", "decode"}
    assert max(one["utilisation"].values()) == one["utilisation"][one["binds"]]
    assert one["check"] is None
    text = epdsim("plan", scenario, "--processes", "1").out
    assert "the smallest fleet" in text
    assert f"what binds: {one['binds']}" in text
    assert "cheaper fleets: " in text
    assert " % of the time (steps that only generate count too)" in text
    traffic = one["traffic"]
    assert f"({traffic['num_requests'] / traffic['end_s']:.3g} a second)" in text
    few, *of_the_search = one["assumed"]
    assert few.startswith("ttft_ms.p99 and tpot_ms.p99: decided by the slowest of 12 requests")
    assert f"assumed: {few}" in text
    assert ("assumed: a fleet misses what" in text) == bool(one["cheaper"]["not_simulated"]) == bool(of_the_search)


def test_what_costs_take_for_granted_is_told(epdsim, scenario):
    words = ("--set", "costs.lm={kind: roofline, model: qwen3-vl-2b, gpu: l40s, weights: fp8}")
    told = "weights: fp8 was not measured on l40s"
    (one,) = json.loads(epdsim("plan", scenario, "--json", "--processes", "1", *words).out)
    assert one["assumed"][0].startswith(told)
    assert f"assumed: {told}" in epdsim("plan", scenario, "--processes", "1", *words).out
    assert f"assumed: {told}" in epdsim("run", scenario, *words).out


def test_a_price_that_is_not_the_gpus_of_an_instance_is_told(epdsim, scenario):
    words = ("--set", "plan.pools={fleet.prefill.count: {high: 3, gpus: 3}}", "--processes", "1")
    told = "an instance of prefill costs 3 GPUs, as plan.pools says; it is run on 2"
    (one,) = json.loads(epdsim("plan", scenario, "--json", *words).out)
    assert one["answer"]["gpus"] == 3 * one["answer"]["fleet"]["fleet.prefill.count"]
    assert told in one["assumed"]
    assert f"assumed: {told}" in epdsim("plan", scenario, *words).out


def test_an_exhaustive_search_leaves_no_cheaper_fleet_out(epdsim, scenario):
    (quick,) = json.loads(epdsim("plan", scenario, "--json", "--processes", "1").out)
    (whole,) = json.loads(epdsim("plan", scenario, "--json", "--processes", "1", "--exhaustive").out)
    assert whole["answer"] == quick["answer"]
    assert (whole["cheaper"]["not_simulated"], whole["assumed"]) == (0, quick["assumed"][:1])
    assert len(whole["trials"]) == len(quick["trials"]) + quick["cheaper"]["not_simulated"]
    assert "all of them were simulated and miss" in epdsim("plan", scenario, "--processes", "1", "--exhaustive").out


def test_the_page_shows_fleets_and_the_answer_and_is_the_same_again(epdsim, scenario):
    words = ("plan", scenario, "--processes", "1", "--store", "kept", "--html")
    assert epdsim(*words, "one.html").code == 0
    page = Path("one.html").read_text()
    for title in (
        "the smallest fleet",
        "fleets that were tried",
        "latency of the answer on all of the traffic",
        "load over",
    ):
        assert title in page
    assert "A fleet&#39;s name is its instances of encode + prefill + decode." in page
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert epdsim(*words, "two.html").code == 0
    assert Path("two.html").read_text() == page
    done = epdsim("plan", scenario, "--html", scenario)
    assert (done.code, done.out) == (2, "")
    assert "--html 'plan.yaml': the run reads this file" in done.err


def test_long_traffic_is_searched_on_its_busiest_stretch(epdsim, scenario):
    words = ["workload.num_requests=120", "workload.rate_req_s=150", "plan.stretch_s=0.15"]
    long = (*(word for one in words for word in ("--set", one)), "--processes", "1", "--json")
    (one,) = json.loads(epdsim("plan", scenario, *long).out)
    start_s, end_s = one["traffic"]["stretch_s"]
    assert end_s - start_s == pytest.approx(0.15)
    assert 0 < one["traffic"]["in_stretch"] < one["traffic"]["num_requests"] == 120
    assert {trial["on"] for trial in one["trials"]} == {"all requests", "the busiest stretch"}
    assert one["answer"]["on"] == "all requests"
    assert {trial["on"] for trial in one["neighbours"]} == {"all requests"}
    (whole,) = json.loads(epdsim("plan", scenario, *long, "--set", "plan.stretch_s=null").out)
    assert (whole["answer"]["fleet"], whole["traffic"]["stretch_s"]) == (one["answer"]["fleet"], None)
    text = epdsim("plan", scenario, *long[:-1]).out
    assert "fleets were simulated on the busiest 0.15 s" in text
    assert "assumed: a fleet with more late requests in the busiest stretch" in text


WHAT_IF = "plan.what_if={slow encoders: {costs.encode.fixed_ms: 60}, as it is: {costs.encode.fixed_ms: 3}}"


def test_the_fleets_around_the_answer_under_more_and_less_load(epdsim, scenario):
    words = ("plan", scenario, "--curves", "--set", WHAT_IF, "--processes", "1", "--store", "kept")
    (one,) = json.loads(epdsim(*words, "--json").out)
    curves, slo = one["around"]["curves"], {"ttft_ms": 60, "tpot_ms": 8}
    assert curves[0]["fleet"] == one["answer"]["fleet"]
    assert curves[0]["told"] == "the answer"
    assert curves[0]["gpus"] == one["answer"]["gpus"]
    assert {curve["told"] for curve in curves} >= {"one encode more", "one decode more"}
    at = {point["load"]: point for point in curves[0]["points"]}
    worst = max(one["answer"]["metrics"][name]["p99"] / bound for name, bound in slo.items())
    assert (at[1.0]["meets"], at[1.0]["worst"]) == (True, pytest.approx(worst))
    assert at[2.0]["offered_req_s"] == pytest.approx(4 * at[0.5]["offered_req_s"])
    for curve in curves:
        for point in curve["points"]:
            assert 0 <= point["good_req_s"] <= point["offered_req_s"] * (1 + 1e-12)
            assert point["meets"] == (point["worst"] <= 1)
    less = [curve for curve in curves if curve["told"].endswith("less")]
    assert not any(point["meets"] for curve in less for point in curve["points"] if point["load"] == 1.0), (
        "as the search says"
    )
    assert one["around"]["what_if"]["as it is"]["worst"] == at[1.0]["worst"]
    assert not one["around"]["what_if"]["slow encoders"]["meets"]
    done = epdsim(*words, "--html", "page.html")
    assert "under more and less load" in done.out
    assert "slow encoders" in done.out
    page = Path("page.html").read_text()
    assert page.count("<svg") == 6
    assert "what one instance more or less of each kind brings" in page


def test_a_closed_loop_has_no_load_to_change(epdsim, scenario):
    request = "{id: r, output_tokens: 2, parts: [{text_tokens: 5}]}"
    loop = (
        f"workload={{kind: closed-loop, concurrency: 2, requests: {{kind: repeat, times: 3, requests: [{request}]}}}}"
    )
    done = epdsim("plan", scenario, "--curves", "--set", loop, "--set", "plan.check={}", "--processes", "1")
    assert (done.code, done.out) == (2, "")
    assert "--curves: a closed loop has no offered load to change; leave it out" in done.err


def test_fleets_are_judged_when_asked_for(epdsim, scenario, unfair):
    words = ("plan", scenario, "--processes", "1")
    unfair()
    assert (epdsim(*words).code, "judged" in epdsim(*words).out) == (0, False)
    done = epdsim(*words, "--judge")
    assert done.code == 1
    assert "VIOLATED  SIM-FAIR at fleet " in done.out
    (one,) = json.loads(epdsim(*words, "--judge", "--json").out)
    assert one["violated"]


def test_processes_change_nothing(epdsim, scenario):
    outcomes = {epdsim("plan", scenario, "--json", "--processes", count).out for count in ("1", "2")}
    assert len(outcomes) == 1


def test_the_check_runs_under_its_own_settings(epdsim, scenario):
    done = epdsim(
        "plan", scenario, "--check", "--json", "--processes", "1", "--set", "plan.check={workload.rate_req_s: 4000}"
    )
    (one,) = json.loads(done.out)
    assert done.code == 1
    assert one["check"] == {"meets": False, "missed": one["check"]["missed"]}
    assert (
        epdsim("plan", scenario, "--check", "--processes", "1", "--set", "plan.check={workload.rate_req_s: 1}").code
        == 0
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["small.yaml"], "it has no 'plan' section"),
        (["plan.yaml", "--set", "slo={}"], "it has no 'slo' section"),
        (["plan.yaml", "--set", "slo.ttft_ms.p99=0.5"], "the largest fleet misses the service level"),
        (["plan.yaml", "--set", "slo={speed: 3}"], "there is no such figure"),
        (
            ["plan.yaml", "--set", "plan.pools.fleet.encode.count={low: 4, high: 3}"],
            "low is 4, more than high, which is 3",
        ),
        (["plan.yaml", "--set", "plan.pools={fleet.cooks.count: {high: 3}}"], "fleet.cooks"),
        (["plan.yaml", "--set", "plan.pools={fleet.prefill.tp: {high: 3}}"], "it is no number of instances"),
        (["plan.yaml", "--set", "fleet.prefill.count=2"], "the plan chooses this number"),
        (["plan.yaml", "--set", "plan.check={nonsense: 3}"], "no such key"),
        (
            ["plan.yaml", "--set", "workload.output_tokens=1"],
            "service level: metric 'tpot_ms.p99': no request completed",
        ),
        (
            ["plan.yaml", "--set", "fleet.topology=p+d", "--set", "plan.pools={fleet.encode.count: {high: 3}}"],
            "the topology is 'p+d', which has no such pool",
        ),
        (
            ["plan.yaml", "--set", "axes.n=fleet.encode.count", "--set", "runs=[{n: [1, 2]}]"],
            "the axis 'n' varies the same key",
        ),
    ],
)
def test_wrong_input_is_one_sentence(epdsim, scenario, words, told):
    done = epdsim("plan", *words, "--processes", "1")
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_pool_that_the_topology_has_not_is_left_out_and_told(epdsim, scenario):
    words = ("plan", scenario, "--set", "fleet.topology=e+pd", "--processes", "1")
    (one,) = json.loads(epdsim(*words, "--json").out)
    assert one["left_out"] == ["fleet.decode.count"]
    assert sorted(one["answer"]["fleet"]) == ["fleet.encode.count", "fleet.prefill.count"]
    assert "left out, for the topology has no such pool: fleet.decode.count" in epdsim(*words).out
