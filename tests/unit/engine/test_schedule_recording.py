"""Replay of recorded schedules: equality with vLLM 0.32.0, and what a difference or a broken file looks like."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.sut.replay import ReplayCount
from epdsim.sut.schedule_recording import replay_schedules

OWN_EC = Path(__file__).parents[2] / "known_answers" / "schedules-ec-vllm-0.32.0.jsonl.gz"
OWN = Path(__file__).parents[2] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"

SESSIONS = OWN.with_name("schedules-sessions-vllm-0.32.0.jsonl.gz")


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return gzip.decompress(OWN.read_bytes()).splitlines(keepends=True)


def test_own_recordings_are_equal() -> None:
    """Three workloads of every mode, as `epdsim record --live vllm --seeds 0:3` wrote them."""
    report = replay_schedules(OWN)
    assert report.first_difference == ()
    assert report.counts == (ReplayCount("workloads", 129, 129), ReplayCount("steps", 8409, 8409))
    assert report.release == "vllm 0.32.0"
    assert report.is_equal


def test_own_recordings_of_sessions_are_equal() -> None:
    """Two workloads of every mode of `SESSION_MODES`, as `epdsim record --live vllm --seeds 500:502` wrote them."""
    report = replay_schedules(SESSIONS)
    assert report.first_difference == ()
    assert report.counts == (ReplayCount("workloads", 52, 52), ReplayCount("steps", 9483, 9483))


def test_own_recordings_of_ec_connectors_are_equal() -> None:
    """Two workloads of every mode of `EC_MODES` but the large one, as `epdsim record --live vllm --seeds 100:102` wrote them."""
    report = replay_schedules(OWN_EC)
    assert report.first_difference == ()
    assert report.counts == (ReplayCount("workloads", 32, 32), ReplayCount("steps", 1476, 1476))


@pytest.mark.parametrize(
    ("name", "num_workloads", "num_steps"),
    [
        ("schedules-encoders-vllm-0.32.0.jsonl.gz", 48, 1831),
        ("schedules-drafts-vllm-0.32.0.jsonl.gz", 68, 7326),
        ("schedules-transfers-vllm-0.32.0.jsonl.gz", 36, 2038),
        ("schedules-together-vllm-0.32.0.jsonl.gz", 57, 8092),
        ("schedules-vllm-0.25-0.31.jsonl.gz", 64, 4957),
    ],
)
def test_further_recordings_are_equal(name: str, num_workloads: int, num_steps: int) -> None:
    """The modes of encoders; four workloads of each of `DRAFT_MODES`, three of twelve of `TRANSFER_MODES`; two of each of
    `TOGETHER_MODES` and of the other four with KV connectors, and five in which the model once differed; nine modes of each older
    release in which it differs.
    """
    report = replay_schedules(OWN.with_name(name))
    assert report.first_difference == ()
    assert report.counts == (
        ReplayCount("workloads", num_workloads, num_workloads),
        ReplayCount("steps", num_steps, num_steps),
    )


def test_shared_recordings_are_equal(shared_path) -> None:
    report = replay_schedules(shared_path("golden/schedules/vllm-0.32.0.jsonl.gz"))
    assert report.first_difference == ()
    assert report.counts == (ReplayCount("workloads", 508, 508), ReplayCount("steps", 16309, 16309))


def _falsify(step: dict, field: str) -> None:
    value = step[field]
    if isinstance(value, dict):
        step[field] = dict(reversed(value.items())) if len(value) > 1 else {"nobody": 1}
    elif isinstance(value, list):
        value.append("nobody")
    else:
        step[field] = -1


@pytest.mark.parametrize(
    "field",
    [
        "step",
        "num_scheduled_tokens",
        "scheduled_encoder_inputs",
        "new",
        "cached",
        "preempted",
        "finished",
        "free_encoder_mm_hashes",
        "sampled",
        "free_blocks",
        "running",
        "waiting",
    ],
)
def test_a_change_in_any_field_is_told(lines: list[bytes], tmp_path: Path, field: str) -> None:
    workload = json.loads(lines[1])
    at = next(i for i, step in enumerate(workload["steps"]) if len(step["num_scheduled_tokens"]) > 1)
    _falsify(workload["steps"][at], field)
    path = tmp_path / "changed.jsonl"
    path.write_bytes(lines[0] + json.dumps(workload).encode() + b"\n" + lines[2])
    report = replay_schedules(path)
    assert report.counts[0] == ReplayCount("workloads", 2, 3)
    assert report.counts[1].equal == report.counts[1].total - (len(workload["steps"]) - at)
    assert not report.is_equal
    config, told = workload["config"], report.first_difference
    assert told[0] == f"line 2: mode {config['mode']}, seed {config['seed']}, step {at}, field {field}"
    assert told[1].startswith("  recorded: ")
    assert told[2].startswith("  model:    ")
    assert len(told) == 4 + min(3, at)


def test_a_missing_field_and_a_new_one_are_differences(lines: list[bytes], tmp_path: Path) -> None:
    for change in ("free_blocks", "news"):
        workload = json.loads(lines[0])
        workload["steps"][0].pop(change, None)
        if change == "news":
            workload["steps"][0]["news"] = 1
        path = tmp_path / "changed.jsonl"
        path.write_text(json.dumps(workload))
        report = replay_schedules(path)
        assert f"step 0, field {change}" in report.first_difference[0]
        assert "(absent)" in "".join(report.first_difference[1:3])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json\n", r"line 1: it is not a recorded workload"),
        (b"{}\n", r"line 1: .*missing required field"),
        (b'{"config": {}}\n', r"line 1: .*missing required field.*config"),
    ],
)
def test_a_line_that_is_no_workload_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        replay_schedules(path)


def test_a_line_cut_in_half_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_bytes(lines[0] + lines[1][:500])
    with pytest.raises(InputError, match=r"line 2"):
        replay_schedules(path)


def test_a_truncated_or_damaged_archive_is_refused(tmp_path: Path) -> None:
    whole = OWN.read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"line \d+: it cannot be read"):
        replay_schedules(path)
    path.write_bytes(b"plain")
    with pytest.raises(InputError, match=r"line 1: it cannot be read"):
        replay_schedules(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        replay_schedules(tmp_path / "nowhere.jsonl")


def test_a_workload_that_uses_an_id_twice_is_told_with_its_line(lines: list[bytes], tmp_path: Path) -> None:
    workload = json.loads(lines[0])
    workload["requests"].append(workload["requests"][0])
    path = tmp_path / "twice.jsonl"
    path.write_text(json.dumps(workload))
    with pytest.raises(InputError, match="line 1: request"):
        replay_schedules(path)


def test_a_step_without_samples_is_refused(lines: list[bytes], tmp_path: Path) -> None:
    workload = json.loads(lines[0])
    del workload["steps"][3]["sampled"]
    path = tmp_path / "silent.jsonl"
    path.write_text(json.dumps(workload))
    with pytest.raises(InputError, match="line 1: step 3"):
        replay_schedules(path)


def test_an_unknown_release_is_told_with_its_line(lines: list[bytes], tmp_path: Path) -> None:
    workload = json.loads(lines[0])
    workload["config"]["vllm"] = "9.9.9"
    path = tmp_path / "future.jsonl"
    path.write_text(json.dumps(workload))
    with pytest.raises(InputError, match="line 1: dialect"):
        replay_schedules(path)


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(InputError, match="no workload"):
        replay_schedules(path)
