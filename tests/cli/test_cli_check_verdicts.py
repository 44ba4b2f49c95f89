"""`epdsim check` and `soak` where a verdict, or its story, is hard to have: no violation is lost, and none counts as held."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from epdsim.cli.endings import Ended
from epdsim.sut import systems
from epdsim.testing.hunt import Hunter


@pytest.fixture
def raising(monkeypatch):
    """A system `raising`: the model with an engine that raises."""

    def engine(_workload, _far):
        raise RuntimeError("boom\nagain")

    monkeypatch.setitem(systems._OWN, "raising", lambda _: replace(systems.reference(), name="raising", engine=engine))


PACK = ("-p", "ECV-SAYS", "--dialect", "vllm-0.32", "--budget", "5")
MODES = ("-p", "SES-EQ", "--dialect", "vllm-0.32:sessions.late_end", "--modes", "v1-async-sessions-eagle")


@pytest.mark.parametrize("words", [PACK, (*MODES, "--seeds", "4:5")], ids=["pack", "modes"])
def test_a_violation_whose_story_cannot_be_kept_stays_one(epdsim, words):
    Path(".epdsim").write_text("in the way")
    called = epdsim("check", "--json", *words)
    (verdict,) = json.loads(called.out)["verdicts"]
    assert (called.code, verdict["outcome"]) == (1, "violated")
    assert verdict["reason"].startswith("its story could not be kept: folder '.epdsim/failures/")
    assert verdict["reason"] in verdict["stories"][0]["lines"][-1]


def test_a_soak_counts_it_too(epdsim):
    Path(".epdsim").write_text("in the way")
    called = epdsim("soak", "s", *PACK, "--seeds", "0:1")
    assert called.code == 1
    assert "its story could not be kept" in called.out


def test_a_violation_whose_story_cannot_be_made_stays_one(epdsim, monkeypatch):
    def stories(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(Hunter, "stories", stories)
    called = epdsim("check", *PACK)
    assert called.code == 1
    assert "its story could not be made: RuntimeError: boom" in called.out


@pytest.mark.parametrize("words", [("-p", "MMC-FRESH"), ("--modes", "v1")], ids=["pack", "modes"])
def test_a_property_whose_test_raises_has_failed(epdsim, raising, words):
    called = epdsim("check", "--sut", "raising", "-p", "ENC-HIT", "--budget", "5", "--json", *words)
    verdicts = {one["id"]: one for one in json.loads(called.out)["verdicts"]}
    assert called.code == 2
    assert verdicts["ENC-HIT"]["outcome"] == "failed"
    assert verdicts["ENC-HIT"]["reason"] == "its test failed: RuntimeError: boom again"
    assert verdicts.get("MMC-FRESH", {"outcome": "holds"})["outcome"] == "holds"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("DES-EQ", "tests judge it, not a hunt; run pytest tests/unit/fleet/test_fleet_des_eq.py::test_"),
        ("SIM-CAP", "it is judged on runs of a fleet, not by a hunt; use epdsim run FILE --check"),
    ],
)
def test_what_a_hunt_cannot_judge_is_refused_with_what_judges_it(epdsim, name, told):
    for words in (("check",), ("soak", "s", "--seeds", "0:1")):
        called = epdsim(*words, "-p", "TP", "-p", name)
        assert (called.code, called.out) == (2, "")
        assert called.err.startswith(f"epdsim: property '{name}': {told}")
        assert called.err.count("\n") == 1


@pytest.mark.parametrize("words", [("check", "-p", "ECV", "--modes", "v1"), ("soak", "s", "--max-time", "0")])
def test_nothing_judged_is_no_success(epdsim, words):
    called = epdsim(*words)
    assert called.code == 3
    assert called.err == "epdsim: nothing was judged\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_signal_that_a_test_catches_ends_the_run(epdsim, monkeypatch, number):
    explored = Hunter.explored
    begun = []

    def caught(self, exploration):
        begun.append(exploration.name)
        try:
            os.kill(os.getpid(), number)
        except Ended:
            raise RuntimeError("flaky") from None
        return explored(self, exploration)

    monkeypatch.setattr(Hunter, "explored", caught)
    monkeypatch.setattr(signal, "default_int_handler", signal.getsignal(signal.SIGINT))
    called = epdsim("check", "-p", "MMC", "--budget", "2")
    assert (called.code, called.out, len(begun)) == (128 + number, "", 1)
    assert called.err.count("\n") == 1
    assert "nothing half-written is left" in called.err


def test_a_replay_names_what_it_played_on(epdsim):
    called = epdsim("check", "--dialect", "vllm-0.32", "-p", "ECV-KEYED", "--budget", "20", "--json")
    failure = json.loads(called.out)["verdicts"][0]["stories"][0]["failure"]
    kept = Path(".epdsim/failures") / failure / "failure.json"
    kept.write_text(kept.read_text().replace('"version":"vllm-0.32"', '"version":"vllm-0.31"'))
    told = f"{failure} in reference vllm-0.32: STILL FAILS (it was found in reference vllm-0.31)"
    assert told in epdsim("replay", failure).out


def test_seeds_without_modes_are_refused(epdsim):
    called = epdsim("check", "-p", "MMC", "--seeds", "5:3")
    assert called.code == 2
    assert "--seeds 5:3: they are those of --modes; give --modes too" in called.err


def test_a_report_of_modes_can_be_put_in_a_table(epdsim):
    words = ("-p", "ENC-HIT", "--dialect", "vllm-0.32", "--modes", "v1", "--seeds", "0:2")
    done = epdsim("check", *words, "--report", "r.json")
    told = json.loads(Path("r.json").read_text())
    assert (told["dialect"], told["modes"], told["seeds"]) == ("vllm-0.32", "v1", "0:2")
    table = epdsim("table", "r.json")
    assert (done.code, table.code) in ((0, 0), (3, 0))
    assert "reference vllm-0.32" in table.out


def test_a_report_that_cannot_be_written_is_refused_before_the_work(epdsim, monkeypatch):
    monkeypatch.setattr(Hunter, "explored", lambda *_: pytest.fail("it works"))
    called = epdsim("check", "-p", "MMC", "--report", "none/r.json")
    assert (called.code, called.out) == (2, "")
    assert "none/r.json: its folder does not exist" in called.err


def test_a_system_that_cannot_be_made_is_one_sentence(epdsim, monkeypatch):
    def raises(_):
        raise RuntimeError("no\ndriver")

    class Entry:
        name = "mine"

        def __init__(self, make):
            self.load = lambda: make

    for make, told in (
        (raises, "it cannot be made (RuntimeError: no driver)"),
        (lambda _: None, "it gives a NoneType"),
    ):
        monkeypatch.setattr(systems, "entry_points", lambda made=make, **_: [Entry(made)])
        called = epdsim("check", "--sut", "mine", "-p", "MMC")
        assert (called.code, called.out) == (2, "")
        assert called.err.startswith(f"epdsim: system 'mine': {told}")
        assert called.err.count("\n") == 1
