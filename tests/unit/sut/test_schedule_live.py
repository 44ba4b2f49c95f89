"""Live comparison and recording without a real system: the model stands in for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from epdsim.cli.live import mode_names, seed_range
from epdsim.core.errors import InputError
from epdsim.core.releases.dialects import named
from epdsim.core.rules import Replacement
from epdsim.core.strip import ADMITTED, send_everything
from epdsim.sut.live import DIED, ExplainedDifference, LiveSystem, compare_live, live_system, record_live
from epdsim.sut.replay import ReplayCount
from epdsim.sut.schedule_model import ModelEngine, model_play
from epdsim.sut.schedule_modes import (
    LATER_MODES,
    MODES,
    NEW_MODES,
    RECORDED_MODES,
    TRAITS,
    default_modes,
    parse_mode,
)
from epdsim.sut.schedule_play import EngineDiedError, Play
from epdsim.sut.schedule_recorder import record_workload
from epdsim.sut.schedule_recording import replay_schedules
from epdsim.sut.schedule_records import RecordedWorkload, read_schedules, write_schedules
from epdsim.sut.schedule_workloads import schedule_workload
from epdsim.sut.vllm import is_installed

SAME = LiveSystem("stand-in", "0.32.0", model_play)
NO_STRIP = named("vllm-0.32").replacing("no strip", {ADMITTED.name: Replacement(send_everything, "as up to 0.28")})
OTHER = LiveSystem("stand-in", "0.32.0", lambda workload: model_play(workload, NO_STRIP))
"""Says that it is 0.32 and sends every payload, as 0.28 does."""


def test_equal_systems_are_equal_in_every_mode() -> None:
    report = compare_live(SAME, MODES, range(1))
    assert report.first_difference == ()
    assert report.is_equal
    assert [(row.mode, row.workloads, row.differences) for row in report.rows] == [(mode, 1, 0) for mode in MODES]
    assert all(row.steps > 0 for row in report.rows)


def test_the_first_difference_is_told_with_how_to_keep_it() -> None:
    report = compare_live(OTHER, ["v1", "v2"], range(12))
    assert not report.is_equal
    told = report.first_difference
    assert told[0].startswith("mode v")
    assert "field new" in told[0]
    assert "'full'" in told[1]
    assert "'full'" not in told[2] or "'none'" in told[2] or "'metadata'" in told[2]
    assert told[-1].startswith("to keep it: epdsim record --live stand-in --seeds ")
    assert sum(row.differences for row in report.rows) > 1


def test_a_listed_difference_is_counted_and_excused() -> None:
    payloads = ExplainedDifference("payloads", "no strip", lambda _, difference: difference.field == "new")
    report = compare_live(OTHER, ["v2"], range(12), [payloads])
    assert report.is_equal
    assert report.explained["payloads"] == report.rows[0].explained > 0
    nothing = ExplainedDifference("nothing", "never", lambda *_: False)
    assert not compare_live(OTHER, ["v2"], range(12), [nothing]).is_equal


def test_a_release_that_dies_is_equal_up_to_there_and_explained() -> None:
    class Dying(Play):
        def step(self, number, *args):
            if number == 7:
                raise EngineDiedError("a sum is negative")
            return super().step(number, *args)

    mortal = LiveSystem("stand-in", "0.32.0", lambda workload: Dying(workload, ModelEngine))
    report = compare_live(mortal, ["v1"], range(2))
    assert report.is_equal
    assert [(row.workloads, row.steps, row.explained) for row in report.rows] == [(2, 14, 2)]
    assert report.explained == {DIED: 2}
    (first, _) = record_live(mortal, ["v1"], range(2))
    assert first.died
    assert first.unfinished


def test_nothing_compared_is_not_equal() -> None:
    assert not compare_live(SAME, [], range(3)).is_equal


def test_progress_names_every_workload() -> None:
    seen: list[tuple[int, int]] = []
    list(record_live(SAME, ["v1", "v2"], range(3), lambda done, total: seen.append((done, total))))
    assert seen == [(done, 6) for done in range(6)]


def test_a_recording_replays_and_has_equal_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz", tmp_path / "plain.jsonl"]
    counts = [write_schedules(path, record_live(SAME, ["v1-hash", "any"], range(2))) for path in paths]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    for path, (num_workloads, num_steps) in zip(paths, counts, strict=True):
        assert replay_schedules(path).counts == (
            ReplayCount("workloads", num_workloads, 4),
            ReplayCount("steps", num_steps, num_steps),
        )
    assert num_workloads == 4
    assert list(read_schedules(paths[0])) == list(read_schedules(paths[2]))


def test_settings_that_are_as_usual_are_not_written(tmp_path: Path) -> None:
    """Lines have the keys of the first recordings, so that either reads the other's."""
    write_schedules(tmp_path / "one.jsonl", record_live(SAME, ["v1", "v2-late"], range(1)))
    first, second = map(json.loads, (tmp_path / "one.jsonl").read_text().splitlines())
    assert list(first) == ["config", "requests", "aborts", "steps", "unfinished"]
    assert {"late_aborts"} >= set(second) - set(first)
    assert not {"enable_chunked_prefill", "ec_role", "kv_role", "kv_load_failure_policy"} & set(first["config"])
    assert not {"cache_salt", "adapter", "num_remote_tokens", "kv"} & set(first["requests"][0])


def test_nothing_is_left_of_a_recording_that_fails(tmp_path: Path) -> None:
    def failing() -> Iterator[RecordedWorkload]:
        yield record_workload(schedule_workload("v1", 0, "0.32.0"), model_play)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_schedules(tmp_path / "cut.jsonl.gz", failing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("place", "says"), [("nowhere/x.jsonl", "folder does not exist"), (".", "it is a folder")])
def test_a_place_that_cannot_be_is_told(tmp_path: Path, place: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        write_schedules(tmp_path / place, [])


def test_a_workload_without_an_end_is_cut() -> None:
    """The recording then says who was alive."""
    cut = record_workload(schedule_workload("v1", 1, "0.32.0"), model_play, most_steps=5)
    assert len(cut.steps) == 5
    assert cut.unfinished == sorted({*cut.steps[-1]["running"], *cut.steps[-1]["waiting"]})
    assert cut.unfinished


def test_modes_are_what_the_recordings_have_and_new_ones() -> None:
    assert len(RECORDED_MODES) == 20
    assert len(set(MODES)) == len(MODES)
    assert set(MODES) == {*RECORDED_MODES, *NEW_MODES, *LATER_MODES}
    used = {trait for mode in MODES if mode != "any" for trait in parse_mode(mode)[1]}
    assert used == set(TRAITS), "a trait that no listed mode has is never run"


@pytest.mark.parametrize("mode", ["", "v3", "v1-", "v1-fast", "async", "v1-ecc-ecp", "any-ecb-ecp"])
def test_a_mode_that_is_none_is_told(mode: str) -> None:
    with pytest.raises(InputError, match="mode '"):
        parse_mode(mode)


@pytest.mark.parametrize("text", ["", "3", "3:", ":3", "3:3", "4:2", "-1:3", "a:b", "1:2:3", "1.5:2"])
def test_seeds_that_are_none_are_told(text: str) -> None:
    with pytest.raises(InputError, match="A:B with 0 <= A < B"):
        seed_range(text)


def test_seeds_and_modes_as_typed() -> None:
    assert seed_range("0:25") == range(25)
    assert mode_names(None) is None
    assert mode_names("v1, v2-async-prio,v1,any") == ("v1", "v2-async-prio", "any")


def test_older_releases_are_compared_without_sessions_and_kv_connectors() -> None:
    assert default_modes("0.32.0") == MODES
    assert set(MODES) - set(default_modes("0.31.0")) == set(LATER_MODES)
    older = LiveSystem("stand-in", "0.31.0", model_play)
    assert [row.mode for row in compare_live(older, None, range(1)).rows] == list(default_modes("0.31.0"))


def test_unknown_and_absent_systems_are_told() -> None:
    with pytest.raises(InputError, match="the only one is vllm"):
        live_system("sglang")
    if not is_installed():
        with pytest.raises(InputError, match="not installed in this environment; install it with make vllm"):
            live_system("vllm")
