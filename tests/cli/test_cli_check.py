"""`epdsim check`, `epdsim judge`, and `epdsim replay` of a failure, as a user runs them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"


def test_the_ideal_holds(epdsim):
    called = epdsim("check", "-p", "ECV-SOUND", "-p", "ECV-KEYED", "--budget", "20")
    assert called.code == 0
    assert called.out.count("holds") == 2
    assert "violated" not in called.out


def test_a_violation_is_told_kept_and_replayed(epdsim):
    called = epdsim("check", "--dialect", "vllm-0.32", "-p", "ECV-KEYED", "--budget", "20", "--json")
    assert called.code == 1
    (verdict,) = json.loads(called.out)["verdicts"]
    assert verdict["outcome"] == "violated"
    failure = verdict["stories"][0]["failure"]
    again = epdsim("replay", failure)
    assert again.code == 1
    assert f"{failure} in reference vllm-0.32: STILL FAILS" in again.out
    saved = epdsim("replay", failure, "--save-scenario", "keyed.yaml", "--json")
    assert saved.code == 1
    assert Path("keyed.yaml").read_text().startswith("# ECV-KEYED: ")
    assert json.loads(epdsim("replay", "keyed.yaml", "--json").out)["story"] == json.loads(saved.out)["story"]
    kept = Path(".epdsim/failures") / failure / "failure.json"
    kept.write_text(kept.read_text().replace('"dialect":"vllm-0.32"', '"dialect":null'))
    fixed = epdsim("replay", failure, "--json")
    assert (fixed.code, json.loads(fixed.out)["status"]) == (0, "FIXED")


def test_an_unreached_premise_is_no_success(epdsim):
    # Render of 0.32 refuses every prompt that would reach it.
    called = epdsim("check", "--dialect", "vllm-0.32", "-p", "SLOT-KEYS", "--budget", "20")
    assert called.code == 3
    assert "inconclusive" in called.out


def test_the_list(epdsim):
    called = epdsim("check", "--list", "-p", "MMC")
    assert called.code == 0
    assert "MMC-MIRROR" in called.out
    assert "yes" in called.out


def test_wrong_words(epdsim):
    for words, told in (
        (("--sut", "sglang"), "system 'sglang': the systems are reference, vllm"),
        (("--dialect", "vllm-0.99"), "dialect 'vllm-0.99': no such name"),
        (("-p", "SLOTS"), "property 'SLOTS': no such property or family"),
    ):
        called = epdsim("check", *words)
        assert (called.code, called.out) == (2, "")
        assert told in called.err


def test_recorded_schedules_are_judged(epdsim):
    called = epdsim("judge", str(RECORDED), "-p", "CHUNK", "-p", "TOK")
    assert called.code == 1
    assert "129 runs, 20,507 events judged, 0 of unknown kind, 0 out of order" in called.out
    assert "which splits" in called.out


def test_events_of_a_run_are_judged_and_what_is_unknown_is_counted(epdsim):
    assert epdsim("run", "small.yaml", "--events", "events.ndjson").code == 0
    with Path("events.ndjson").open("a") as file:
        file.write('{"kind":"Rumour","time_ms":1.0,"instance":"render-0"}\n')
        file.write(
            '{"kind":"RequestArrived","time_ms":0.0,"instance":"orchestrator","request_id":"late","output_tokens":1}\n'
        )
    called = epdsim("judge", "events.ndjson", "-p", "SIM", "--json")
    judged = json.loads(called.out)
    assert called.code == 0
    assert judged["unknown"] == {"Rumour": 1}
    assert (judged["num_runs"], judged["num_out_of_order"]) == (3, 1)
    assert {judged["verdicts"][name]["outcome"] for name in ("SIM-BOOKS", "SIM-CAP", "SIM-ORDER")} == {"holds"}


def test_one_story_stands_for_many_violations(epdsim):
    rows = [
        {"kind": "RequestChecked", "time_ms": 0, "instance": "mine", "case": f"c{number}", "reason": "no embedding"}
        | {"items": [{"modality": modality, "index": 0, "mm_hash": "h0", "state": "metadata"}]}
        | {"offered": [], "has_ec_params": False, "accepted": False}
        for number, modality in enumerate(("image", "audio"))
    ]
    header = {"format": "epdsim-events", "version": 1}
    Path("two.ndjson").write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)))
    called = epdsim("judge", "two.ndjson")
    assert called.code == 1
    assert "ECV-SAYS, the first of 2\n" in called.out
    assert called.out.count("no embedding") == 1, "the refusal is quoted once"
    assert "the refusal does not name image[0] (h0, metadata)" in called.out


def test_a_pipe_is_not_judged(epdsim):
    os.mkfifo("pipe")
    called = epdsim("judge", "pipe")
    assert called.code == 2
    assert "'pipe': it is a pipe, and what is judged is read twice; write a file, and name that" in called.err


def test_a_failure_that_is_not_here(epdsim):
    called = epdsim("replay", "ecv-keyed-bca741")
    assert called.code == 2
    assert "'ecv-keyed-bca741': there is no such file, and no such failure in .epdsim/failures here" in called.err
    assert "go to the folder that check ran in" in called.err


def test_what_is_no_file_of_events(epdsim):
    Path("odd.ndjson").write_text('{"a": 1}\n')
    called = epdsim("judge", "odd.ndjson")
    assert called.code == 2
    assert "neither an event file nor a recording of schedules" in called.err


def test_a_package_that_is_missing_is_one_sentence(epdsim, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    ended = epdsim("check", "-p", "STRIP")
    assert ended.code == 2
    assert ended.err == "epdsim: package 'pytest': it is not installed here; install epdsim with what it depends on\n"
