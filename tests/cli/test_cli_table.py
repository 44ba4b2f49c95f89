"""`epdsim table`: verdicts of releases beside those of the model."""

from __future__ import annotations

import json
from pathlib import Path


def report(name, sut, version, outcomes, budget=20):
    verdicts = [{"id": key, "outcome": value} for key, value in outcomes.items()]
    for one in verdicts:
        if one["outcome"] == "not run":
            one["reason"] = f"{sut} {version} has no protocol to put cases to"
    told = {"sut": sut, "version": version, "seed": 0, "budget": budget, "verdicts": verdicts}
    Path(name).write_text(json.dumps(told))
    return name


def test_what_check_reports_is_put_side_by_side(epdsim):
    for dialect in ("vllm-0.29", "vllm-0.32"):
        words = (
            "--dialect",
            dialect,
            "-p",
            "ECV-KEYED",
            "-p",
            "ECV-SOUND",
            "--budget",
            "10",
            "--report",
            f"{dialect}.json",
        )
        called = epdsim("check", *words, "--no-stories")
        assert "replay" not in called.out
    called = epdsim("table", "vllm-0.32.json", "vllm-0.29.json", "--markdown")
    assert called.code == 0
    assert called.out.splitlines()[:4] == [
        "| property | reference vllm-0.29 | reference vllm-0.32 |",
        "| --- | --- | --- |",
        "| ECV-KEYED | violated | violated |",
        "| ECV-SOUND | violated | holds |",
    ]


def test_a_release_that_is_not_as_predicted(epdsim):
    seen = report("v", "vllm", "0.31.0", {"ENC-HIT": "holds", "SLOT-RT": "not run", "ISO": "holds"})
    predicted = report("r", "reference", "vllm-0.31", {"ENC-HIT": "violated", "SLOT-RT": "holds", "ISO": "holds"})
    called = epdsim("table", seen, predicted)
    assert called.code == 1
    assert "ENC-HIT in 0.31.0: holds, the model says violated" in called.out
    assert (
        "SLOT-RT in 0.31.0: not run (vllm 0.31.0 has no protocol to put cases to), the model says holds" in called.out
    )
    assert "1 of 2 verdicts of releases are what the model in their dialects says" in called.out
    assert "reference" not in called.out


def test_releases_stand_in_order(epdsim):
    files = [report(f"{n}", "vllm", f"0.{n}.0", {"ISO": "holds"}) for n in (100, 32, 9)]
    assert "vllm 0.9.0 | vllm 0.32.0 | vllm 0.100.0" in epdsim("table", *files, "--markdown").out


def test_a_report_has_one_known_outcome_of_each_property(epdsim):
    odd = epdsim("table", report("odd", "vllm", "0.32.0", {"ISO": "banana"}))
    assert (odd.code, odd.out) == (2, "")
    assert "file 'odd': it is no report of epdsim check (Invalid enum value 'banana'" in odd.err
    whole = json.loads(Path(report("twice", "vllm", "0.32.0", {"ISO": "holds"})).read_text())
    Path("twice").write_text(
        json.dumps(whole | {"verdicts": [*whole["verdicts"], {"id": "ISO", "outcome": "violated"}]})
    )
    twice = epdsim("table", "twice")
    assert (twice.code, twice.out) == (2, "")
    assert "file 'twice': it has several verdicts on ISO; leave all but one out" in twice.err


def test_what_cannot_be_put_together(epdsim):
    one, other = report("a", "vllm", "0.32.0", {}), report("b", "vllm", "0.31.0", {}, budget=30)
    for words, told in (
        ((one, other), "the reports: their seeds, budgets or modes differ"),
        ((one, one), "two reports of vllm 0.32: one is enough"),
        (("none",), "file 'none': it is no report of epdsim check"),
    ):
        called = epdsim("table", *words)
        assert (called.code, called.out) == (2, "")
        assert told in called.err


def test_a_test_that_failed_is_no_explanation(epdsim):
    for seen, predicted in (("failed", "holds"), ("holds", "failed"), ("failed", "failed")):
        files = report("v", "vllm", "0.31.0", {"ISO": seen}), report("r", "reference", "vllm-0.31", {"ISO": predicted})
        assert epdsim("table", *files).code == 1


def test_a_violation_without_a_story_is_no_explanation(epdsim):
    files = report("v", "vllm", "0.31.0", {"ISO": "violated"}), report("r", "reference", "vllm-0.31", {"ISO": "holds"})
    told = json.loads(Path("v").read_text())
    told["verdicts"][0]["reason"] = "its story could not be kept"
    Path("v").write_text(json.dumps(told))
    assert epdsim("table", *files).code == 1
