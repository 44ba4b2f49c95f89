"""The model beside the vLLM that is installed: skipped where there is none (make vllm installs it)."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from epdsim.sut.live import LiveSystem, compare_live, live_system, record_live
from epdsim.sut.schedule_modes import MODES
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_records import read_schedules, write_schedules

OWN = Path(__file__).parents[1] / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
)


@pytest.fixture(scope="module")
def vllm() -> LiveSystem:
    return live_system("vllm")


@pytest.mark.parametrize("mode", MODES)
def test_the_release_decides_as_the_model(vllm: LiveSystem, mode: str) -> None:
    report = compare_live(vllm, [mode], range(2))
    assert report.first_difference == ()
    assert report.is_equal
    assert report.rows[0].workloads == 2


def test_a_changed_rule_is_seen(vllm: LiveSystem) -> None:
    """The comparison is sharp: a release that answers for another one is not equal."""
    older = LiveSystem("vllm", "0.28.0", vllm.play)
    report = compare_live(older, ["v2"], range(10))
    assert not report.is_equal
    assert ", field " in report.first_difference[0]


def test_a_recording_is_made_again_byte_for_byte(vllm: LiveSystem, tmp_path: Path) -> None:
    for name in ("one.jsonl.gz", "two.jsonl.gz"):
        write_schedules(tmp_path / name, record_live(vllm, ["v1-hash", "v2-async-ecc"], range(2)))
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


def _decided_again(vllm: LiveSystem, recording: Path, every: int) -> int:
    """Workloads of a recording that the release decides as recorded, with nothing but the recorded tokens handed in."""
    lines = gzip.decompress(recording.read_bytes()).splitlines()
    checked = 0
    for place, recorded in read_schedules(recording):
        if place % every:
            continue
        if recorded.config.vllm != vllm.release:
            pytest.skip(f"recorded from {recorded.config.vllm}, installed is {vllm.release}")
        play: Play = vllm.play(recorded)
        steps = [
            play.step(
                number,
                lambda name, _, step=step: step["sampled"][name],
                lambda name, step=step: step["num_draft_tokens"][name],
            )
            for number, step in enumerate(recorded.steps)
        ]
        assert json.dumps(steps) == json.dumps(json.loads(lines[place - 1])["steps"]), f"line {place}"
        checked += 1
    return checked


def test_own_recordings_are_decided_again(vllm: LiveSystem) -> None:
    assert _decided_again(vllm, OWN, every=3) == 43
    assert _decided_again(vllm, OWN.with_name("schedules-drafts-vllm-0.32.0.jsonl.gz"), every=3) == 22


def test_shared_recordings_are_decided_again(vllm: LiveSystem, shared_path) -> None:
    """Recorded by another harness: this one drives the release in the same way."""
    assert _decided_again(vllm, shared_path("golden/schedules/vllm-0.32.0.jsonl.gz"), every=4) == 127
