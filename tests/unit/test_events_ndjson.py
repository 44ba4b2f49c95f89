"""Event files: a round trip, and every way in which a file can be wrong."""

import gzip
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.events import FirstToken, LegSent, NdjsonWriter, RequestArrived, read_events, read_header

EVENTS = [
    RequestArrived(0.0, "orchestrator", "r1", 5, "warm-up"),
    LegSent(1.5, "orchestrator", "r1", "prefill", "prefill-0", 99, "metadata", {"full": 1000, "metadata": 99}),
    FirstToken(2.25, "prefill-0", "r1"),
]


@pytest.mark.parametrize("name", ["run.ndjson", "run.ndjson.gz"])
def test_events_survive_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with NdjsonWriter(path, {"seed": 3}) as write:
        for event in EVENTS:
            write(event)
    assert list(read_events(path)) == EVENTS
    assert read_header(path)["seed"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_failed_run_leaves_no_file_and_keeps_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "run.ndjson"
    path.write_text("older\n")

    def run() -> None:
        with NdjsonWriter(path) as write:
            write(EVENTS[0])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert path.read_text() == "older\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.ndjson"]


def test_a_missing_folder_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder does not exist"):
        NdjsonWriter(tmp_path / "no" / "run.ndjson")


def test_a_cut_line_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "run.ndjson"
    with NdjsonWriter(path) as write:
        write(EVENTS[0])
    path.write_bytes(path.read_bytes() + b'{"kind":"FirstToken","time')
    with pytest.raises(InputError, match="line 3"):
        list(read_events(path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"format": "something"}\n')
    with pytest.raises(InputError, match="not the header"):
        list(read_events(other))
    newer = tmp_path / "newer.json"
    newer.write_text('{"format": "epdsim-events", "version": 99}\n')
    with pytest.raises(InputError, match="version is 99"):
        list(read_events(newer))
    cut = tmp_path / "cut.ndjson.gz"
    cut.write_bytes(gzip.compress(b"x" * 1000)[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        list(read_events(cut))
    with pytest.raises(InputError, match="cannot be read"):
        read_header(tmp_path / "absent")


def test_a_first_line_nested_without_end_is_no_header(tmp_path):
    (tmp_path / "deep.jsonl").write_bytes(b'{"config":' + b"[" * 20_000)
    assert read_header(tmp_path / "deep.jsonl") == {}
