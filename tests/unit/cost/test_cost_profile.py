"""Profile files: whole or not at all, and a clear sentence for a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.cost.broadcast import BroadcastProfile
from epdsim.cost.profile import MeasuredCell, ProfileRecord, load_profile, load_record, save_profile

RECORD = ProfileRecord(
    BroadcastProfile(fixed_ms=0.25, socket_bytes_per_ms=4.4e6, reader_contention=0.45, in_band=False),
    1.1e6,
    {"cores": 2, "python": "3.11.7"},
    (MeasuredCell(4, 1000, 1, 1, 25, 1.0, 2.0, 5.0, 2.5), MeasuredCell(4, 9000, 1, 1, 25, 1.0, 2.0, 5.0, 5.5)),
)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "host.json"
    save_profile(path, RECORD)
    return path


def test_what_is_written_is_what_is_read(written):
    assert load_record(written) == RECORD
    assert load_profile(written) == RECORD.profile
    assert [cell.is_within_spread for cell in load_record(written).measured] == [True, False]
    assert list(written.parent.iterdir()) == [written], "no temporary file is left"


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(written, monkeypatch):
    before = written.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"host\.json: it cannot be written \(No space left on device\)"):
        save_profile(written, RECORD)
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_a_place_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(InputError, match=r"its folder does not exist"):
        save_profile(tmp_path / "nowhere" / "host.json", RECORD)


def changed(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda c: c.update(format="other"), "format"),
        (lambda c: c.update(version=2), "version"),
        (lambda c: c.update(more=1), "more"),
        (lambda c: c.pop("profile"), "profile"),
        (lambda c: c["profile"].pop("fixed_ms"), "fixed_ms"),
        (lambda c: c["profile"].update(fix_ms=1), "fix_ms"),
        (lambda c: c["profile"].update(fixed_ms="1"), "float"),
        (lambda c: c["profile"].update(fixed_ms=-1), "fixed_ms = -1"),
        (lambda c: c["profile"].update(fixed_ms=float("nan")), "is no broadcast profile"),
        (lambda c: c["profile"].update(socket_bytes_per_ms=0), "socket_bytes_per_ms = 0"),
        (lambda c: c["profile"].update(chunk_bytes=1.5), "int"),
        (lambda c: c["profile"].update(in_band=1), "bool"),
    ],
)
def test_a_broken_profile_is_told_with_its_file(written, change, rule):
    changed(written, change)
    with pytest.raises(InputError, match=rule) as told:
        load_profile(written)
    assert str(told.value).startswith(f"{written}: ")


def test_what_is_no_file_of_this_kind_is_told(written, tmp_path):
    whole = written.read_bytes()
    written.write_bytes(whole[: len(whole) // 2])
    for path in (written, tmp_path / "missing.json", tmp_path):
        with pytest.raises(InputError, match="epdsim calibrate -o FILE"):
            load_profile(path)
    written.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is no broadcast profile"):
        load_profile(written)
