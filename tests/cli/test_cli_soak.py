"""`epdsim soak`: ranges, files, and what it prints."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--seeds", "0"], "must be FIRST:STOP"),
        (["--seeds", "5:2"], "no seed is in it"),
        ([], "this never ends"),
        (["--seeds", "0:1", "-p", "NOPE"], "no such property or family"),
        (["--seeds", "0:1", "--sut", "nothing"], "nothing"),
    ],
)
def test_what_cannot_be_soaked_is_refused_in_one_sentence(epdsim, tmp_path, words, told):
    done = epdsim("soak", str(tmp_path / "s"), *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_a_soak_is_told_and_told_again_without_running(epdsim, tmp_path):
    words = ("soak", str(tmp_path / "s"), "-p", "ECV-SOUND", "--budget", "2")
    done = epdsim(*words, "--seeds", "3:4")
    assert (done.code, done.err) == (0, "")
    assert "ECV-SOUND" in done.out
    again = epdsim(*words, "--max-time", "0")
    assert (again.code, again.out) == (0, done.out)
