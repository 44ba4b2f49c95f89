"""`epdsim calibrate` as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from epdsim.cost.profile import load_record

pytestmark = pytest.mark.xdist_group("shared-memory")


def epdsim(*words, cwd):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "from epdsim.cli import main; main()", *words],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


def test_it_writes_a_profile_and_shows_what_it_measured(tmp_path):
    done = epdsim(
        "calibrate", "-o", "host.json", "--readers", "1", "--readers", "2", "--repeats", "3", "--chunk-mib", "1",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = load_record(tmp_path / "host.json")
    assert record.profile.chunk_bytes == 1 << 20
    assert {cell.readers for cell in record.measured} == {1, 2}
    assert "fitted" in done.stdout
    assert sum(done.stdout.count(verdict) for verdict in ("│ yes ", "│ NO ")) == len(record.measured)
    assert "Warning" not in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["host.json"]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    done = epdsim("calibrate", "-o", "nowhere/host.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "epdsim: nowhere/host.json: its folder does not exist; create it or choose another place\n"


def test_too_few_sizes_are_told(tmp_path):
    done = epdsim("calibrate", "-o", "host.json", "--readers", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "at least two different group sizes" in done.stderr
    assert list(tmp_path.iterdir()) == []
