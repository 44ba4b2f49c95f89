"""`epdsim validate`: published beside simulated, over files and folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

LONG = {"epd-blog", "kimi-vl", "text-h100", "data-parallel-encoder"}
SCENARIOS = Path(__file__).parents[2] / "scenarios/validation"


def scenario(path: Path, published: str, within: float) -> None:
    text = Path("small.yaml").read_text()
    text = text[: text.index("claims:")] + (
        f"published: [{published}]\n"
        f"claims: [{{kind: deviation, metric: completed, where: {{ranks: [2]}}, within_percent: {within}}}]\n"
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("name: small", f"name: {path.stem}"))


def test_a_folder_is_run_in_order_and_summed_up(epdsim):
    there = "{at: {topology: apart, ranks: 2}, metric: completed, value: 10}"
    scenario(Path("checks/b-loose.yaml"), there, 21)
    scenario(Path("checks/a-strict.yaml"), there, 19)
    done = epdsim("validate", "checks")
    assert (done.code, done.err) == (1, ""), "one claim fails"
    assert done.out.index("a-strict: ") < done.out.index("b-loose: ")
    rows = [
        re.split(r" *│ *", line.strip("│ ")) for line in done.out.splitlines() if "loose" in line or "strict" in line
    ]
    assert rows[-2:] == [
        ["a-strict", "0", "1", "20.0 %", "20.0 %", "0 of 1"],
        ["b-loose", "0", "1", "20.0 %", "20.0 %", "1 of 1"],
    ]
    assert epdsim("validate", "checks/b-loose.yaml").code == 0


def test_what_is_given_is_no_prediction(epdsim):
    scenario(Path("checks/one.yaml"), "{at: {topology: apart, ranks: 2}, metric: completed, value: 12, given: true}", 1)
    (one,) = json.loads(epdsim("validate", "checks", "--json").out)
    assert (one["published"][0]["role"], one["published"][0]["deviation_percent"]) == ("given", 0.0)
    assert "none" in epdsim("validate", "checks").out.splitlines()[-2]


def test_a_property_that_a_run_breaks_is_told_and_makes_the_exit_code_1(epdsim, unfair):
    words = ("validate", "small.yaml", "--processes", "1")
    assert "judged  " in epdsim(*words).out
    unfair()
    done = epdsim(*words)
    assert done.code == 1
    assert "VIOLATED  SIM-FAIR at topology apart, ranks 2: prefill-0 takes" in done.out
    assert json.loads(epdsim(*words, "--json").out)[0]["violated"]
    unjudged = epdsim(*words, "--no-check")
    assert (unjudged.code, "judged" in unjudged.out) == (0, False)


def test_wrong_places_are_told_before_anything_runs(epdsim):
    Path("empty").mkdir()
    for words, told in [
        (["empty"], "empty: there is no .yaml file in it; name a folder of scenarios, or files"),
        (["missing"], "missing"),
        (["small.yaml", "missing.yaml"], "missing.yaml"),
        ([], "scenarios/validation"),
    ]:
        done = epdsim("validate", *words)
        assert (done.code, done.out) == (2, ""), words
        assert told in done.err
        assert done.err.count("\n") == 1


def test_the_scenarios_of_the_repository_hold(epdsim):
    quick = [str(path) for path in sorted(SCENARIOS.glob("*.yaml")) if path.stem not in LONG]
    done = epdsim("validate", "--json", *quick)
    assert done.code == 0
    found = {one["scenario"]: one for one in json.loads(done.out)}
    assert {"cached-images", "payload-bytes", "preprocessing", "vit-tensor-parallel"} <= set(found)
    sizes = {
        row["metric"]: row["simulated"]
        for row in found["payload-bytes"]["published"]
        if row["at"]["picture"] == "200x300"
    }
    assert sizes["prompt_tokens"] == 84
    window = [row for row in found["cached-images"]["published"] if row["at"].get("window") == "rolling"]
    assert len(window) == 5
    assert all(row["role"] == "predicted" for row in window)
