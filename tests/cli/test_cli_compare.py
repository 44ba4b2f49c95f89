"""`epdsim compare` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FAST = ("--processes", "1", "--seeds", "0:3")


def test_a_slower_model_is_a_regression_and_the_way_back_is_not(epdsim):
    slower = "costs.lm.fixed_ms=6"
    done = epdsim("compare", "small.yaml", "--head", slower, *FAST)
    assert (done.code, done.err) == (1, "")
    assert "FAILS  tpot_ms.p50 at topology apart, ranks 2: " in done.out
    assert "REGRESSION" in done.out
    assert epdsim("compare", "small.yaml", "--base", slower, *FAST).code == 0
    assert epdsim("compare", "small.yaml", "--head", slower, "--worse-by", "90", *FAST).code == 0


def test_files_are_compared_where_they_have_the_same_points(epdsim):
    Path("other.yaml").write_text(Path("small.yaml").read_text().replace("ranks: [4]", "ranks: [8]"))
    done = epdsim("compare", "small.yaml", "other.yaml", "--figure", "ttft_ms.p99", "--json", *FAST)
    assert done.code == 0
    rows = json.loads(done.out)["differences"]
    assert [row["point"]["topology"] for row in rows] == ["apart", "together"]
    assert all(row["base"] == row["head"] and not row["is_regression"] for row in rows)


def test_a_setting_of_both_sides_is_under_those_of_either(epdsim):
    both = ("--set", "costs.hop_ms=3", "--set", "costs.lm.fixed_ms=9")
    words = ("compare", "small.yaml", "--head", "costs.lm.fixed_ms=6", "--json", *FAST)
    twice = ("--base", "costs.hop_ms=3", "--base", "costs.lm.fixed_ms=9", "--head", "costs.hop_ms=3")
    assert epdsim(*words, *both).out == epdsim(*words, *twice).out != epdsim(*words).out


STILL = "workload={kind: fixed, requests: [{id: r, output_tokens: 4, parts: [{text_tokens: 5}]}]}"


def test_seeds_that_change_nothing_give_no_interval_and_are_told(epdsim):
    words = ("compare", "small.yaml", "--set", STILL, *FAST)
    done = epdsim(*words, "--head", "costs.hop_ms=0.6", "--figure", "ttft_ms")
    assert done.code == 1
    assert "the seeds change nothing: there is no interval, and one run of each side decides" in done.out
    assert "the same with every seed" in done.out
    assert "worse by more than 0 % in one run of each side" in done.out
    assert " % to " not in done.out
    assert "for certain" not in done.out
    rows = json.loads(epdsim(*words, "--head", "costs.hop_ms=0.6", "--json").out)["differences"]
    assert {(row["low_percent"], row["high_percent"], row["num_seeds"]) for row in rows} == {(None, None, 1)}
    better = epdsim(*words, "--head", "costs.hop_ms=0.4", "--figure", "ttft_ms")
    assert better.code == 0
    assert "holds  no figure is worse by more than 0 % in one run of each side" in better.out


def test_points_where_the_seeds_change_nothing_are_named(epdsim):
    axes = f"axes.load={{still: {{{STILL.replace('=', ': ')}}}, drawn: {{}}}}"
    both = ("--set", axes, "--set", "runs=[{load: [still, drawn]}]", "--set", "claims=[]")
    done = epdsim("compare", "small.yaml", *both, "--head", "costs.hop_ms=0.4", "--figure", "ttft_ms", *FAST)
    assert done.code == 0
    assert "the seeds change nothing at load still: " in done.out
    assert "holds  no figure is worse by more than 0 % for certain or in one run of each side" in done.out


def test_processes_change_nothing(epdsim):
    words = ("compare", "small.yaml", "--head", "fleet.router=least_loaded", "--seeds", "0:2", "--json")
    assert epdsim(*words, "--processes", "1").out == epdsim(*words, "--processes", "2").out


def test_a_property_that_a_side_breaks_is_told(epdsim, unfair):
    words = ("compare", "small.yaml", "--head", "title=x", "--seeds", "0:1", "--processes", "1")
    assert "judged  " in epdsim(*words).out
    unfair()
    done = epdsim(*words)
    assert done.code == 1
    assert "VIOLATED  SIM-FAIR at base, topology apart, ranks 2: prefill-0 takes" in done.out
    assert json.loads(epdsim(*words, "--json").out)["violated"]
    unjudged = epdsim(*words, "--no-check")
    assert (unjudged.code, "judged" in unjudged.out) == (0, False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["small.yaml"], "base and head are the same"),
        (["small.yaml", "missing.yaml"], "missing.yaml"),
        (["small.yaml", "--head", "fleet.cooks=3"], "cooks"),
        (["small.yaml", "--set", "costs.hop_ms=3"], "base and head are the same"),
        (["small.yaml", "--set", "seed=3", "--head", "title=x"], "--set or --base seed=...: both sides"),
        (["small.yaml", "--set", "costs.hop_ms", "--head", "title=x"], "--set or --base 'costs.hop_ms': it has no '='"),
        (["small.yaml", "--head", "seed=1"], "choose them with --seeds"),
        (["small.yaml", "--head", "costs.hop_ms"], "--head 'costs.hop_ms': it has no '='"),
        (["small.yaml", "--head", "title=x", "--figure", "speed"], "there is no such figure"),
        (
            ["small.yaml", "--head", "runs=[{topology: [apart], ranks: [9]}]", "--head", "claims=[]"],
            "it runs no point that",
        ),
        (["small.yaml", "--head", "seed=1", "--seeds", "5:2"], "it is A:B with 0 <= A < B"),
    ],
)
def test_wrong_input_is_one_sentence(epdsim, words, told):
    done = epdsim("compare", *words, "--processes", "1")
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
