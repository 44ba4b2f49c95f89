"""Soaks: what is kept, what is merged, and what becomes of it when something goes wrong."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.testing.soak import Soak, SoakFile, check_seed, due, on_ray, on_this_machine, tallies

SOAK = Soak()


def report(seed: int, outcome: str = "holds", num_lines: int = 0) -> dict[str, Any]:
    verdict: dict[str, Any] = {"id": "A", "outcome": outcome, "num_reached": 1}
    if outcome == "violated":
        verdict["stories"] = [{"lines": ["x"] * num_lines, "replay": f"again {seed}"}]
    return {"seed": seed, "verdicts": [verdict]}


@given(
    st.dictionaries(
        st.integers(0, 20), st.tuples(st.sampled_from(["holds", "violated"]), st.integers(1, 5)), max_size=8
    ),
    st.randoms(use_true_random=False),
)
def test_tallies_do_not_depend_on_order_or_repeats(found: dict[int, tuple[str, int]], draw: random.Random) -> None:
    reports = [report(seed, *told) for seed, told in found.items()]
    shuffled = reports + reports[:3]
    draw.shuffle(shuffled)
    assert tallies(shuffled) == tallies(reports)


def test_the_shortest_story_is_kept_of_equal_ones_that_of_the_lowest_seed() -> None:
    told = tallies([report(3, "violated", 2), report(1, "violated", 4), report(2, "violated", 2), report(0)])["A"]
    assert (told.outcome, told.violated, told.num_reached) == ("violated", [1, 2, 3], 4)
    assert told.smallest is not None
    assert told.smallest["replay"] == "again 2"


def test_an_interrupted_soak_goes_on_without_the_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    first = SoakFile(path, SOAK)
    for seed in (0, 2):
        first.add(report(seed))
    first.close()
    with path.open("ab") as file:
        file.write(b'{"seed": 1, "verd')
    again = SoakFile(path, SOAK)
    assert list(due(0, 5, again.reports, None)) == [1, 3, 4]
    again.add(report(1))
    again.close()
    assert [json.loads(line).get("seed") for line in path.read_text().splitlines()] == [None, 0, 2, 1]


def test_files_of_two_machines_merge_to_what_one_would_have_found(tmp_path: Path) -> None:
    here, there, alone = (SoakFile(tmp_path / name, SOAK) for name in ("here", "there", "alone"))
    for seed in range(6):
        alone.add(report(seed, "violated", seed))
        (here if seed % 2 else there).add(report(seed, "violated", seed))
    assert here.merge(tmp_path / "there") == 3
    assert here.merge(tmp_path / "there") == 0
    assert tallies(here.reports.values()) == tallies(alone.reports.values())
    for one in (here, there, alone):
        one.close()


def test_another_soak_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    SoakFile(path, SOAK).close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="something else \\(budget 150\\)"):
        SoakFile(path, Soak(budget=7))
    for content, told in ((b"seed 1\n", "line 1: not a line of a soak"), (b'{"seed": 1', "it holds no soak")):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(InputError, match=told):
            SoakFile(other, SOAK)
        assert other.read_bytes() == content
    assert path.read_bytes() == before


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    first = SoakFile(tmp_path / "s", SOAK)
    with pytest.raises(InputError, match="another soak writes it now"):
        SoakFile(tmp_path / "s", SOAK)
    first.close()
    SoakFile(tmp_path / "s", SOAK).close()


def test_a_full_disk_keeps_what_is_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s"
    results = SoakFile(path, SOAK)
    results.add(report(0))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
        with pytest.raises(InputError, match="seeds kept: 1;"):
            results.add(report(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
        results.close()
    assert path.read_bytes() == before


def test_a_seed_that_dies_is_told_and_run_again_next_time(tmp_path: Path) -> None:
    results = SoakFile(tmp_path / "s", SOAK)
    results.add({"seed": 0, "died": "killed"})
    assert list(due(0, 2, results.reports, None)) == [0, 1]
    results.close()
    again = SoakFile(tmp_path / "s", SOAK)
    assert not again.reports
    again.close()


def test_no_seed_is_begun_once_the_time_is_over() -> None:
    assert list(due(0, None, (), 0)) == []


def test_seeds_run_in_processes_and_one_that_cannot_says_why() -> None:
    good, bad = Soak(properties=("ECV-SOUND",), budget=2), Soak(sut="nothing")
    assert [one["verdicts"][0]["id"] for one in on_this_machine(good, iter([5]), 2)] == ["ECV-SOUND"]
    assert "nothing" in check_seed(bad, 0)["died"]


def test_a_killed_worker_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def killed(command: list[str], **options: Any) -> Any:
        kill = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
        return run(kill if "1" in command[command.index("--seed") :][1:2] else command, **options)

    monkeypatch.setattr(subprocess, "run", killed)
    told = {one["seed"]: one for one in on_this_machine(Soak(properties=("ECV-SOUND",), budget=2), iter([0, 1]), 2)}
    assert told[1]["died"] == "exit code -9"
    assert told[0]["verdicts"][0]["outcome"] == "holds"


def test_ray_gives_the_same() -> None:
    pytest.importorskip("ray", reason="the extra `distributed` is not installed")
    soak = Soak(properties=("ECV-SOUND",), budget=2)

    def found(workers: Any) -> dict[int, Any]:
        seeds: Iterator[int] = iter([0, 1])
        return {one["seed"]: one["verdicts"] for one in workers(soak, seeds, 2)}

    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    assert found(on_ray) == found(on_this_machine)


def test_a_seed_whose_test_failed_counts() -> None:
    failed = {"seed": 4, "verdicts": [{"id": "A", "outcome": "failed", "reason": "its test failed: boom"}]}
    told = tallies([report(0), failed])["A"]
    assert (told.outcome, told.failed, told.reason) == ("failed", [4], "its test failed: boom")
    assert tallies([failed, report(1, "violated", 2)])["A"].outcome == "violated"


@pytest.mark.parametrize(
    "verdicts",
    [3, [{"id": "A"}], [{"id": "A", "outcome": "odd"}], [{"id": "A", "outcome": "violated", "stories": [{}]}]],
)
def test_a_line_that_is_no_seeds_is_told_with_its_number(tmp_path: Path, verdicts: Any) -> None:
    path = tmp_path / "s"
    SoakFile(path, SOAK).close()
    with path.open("a") as file:
        file.write(json.dumps({"seed": 0, "verdicts": verdicts}) + "\n")
    with pytest.raises(InputError, match="line 2: not a line of a soak"):
        SoakFile(path, SOAK)
