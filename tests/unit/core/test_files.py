"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file


def written(path, content=b"new"):
    with whole_file(path, "the file") as file:
        file.write(content)


def written_half(path, error):
    with whole_file(path, "the file") as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("name", ["out", "out.gz"])
def test_a_block_that_fails_leaves_what_was_there(tmp_path, name, error):
    (tmp_path / name).write_bytes(b"old")
    wanted = InputError if isinstance(error, OSError) else error
    with pytest.raises(wanted):
        written_half(tmp_path / name, error)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(name, b"old")]


def test_a_full_disk_is_told():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here to refuse bytes")
    with pytest.raises(InputError, match=r"the file: it cannot be written \(No space left on device\)"):
        written(full)


def test_a_device_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    written(pipe)
    assert os.read(reader, 99) == b"new"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_still_points_where_it_did(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    written(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_equal_content_gives_equal_archives(tmp_path):
    written(tmp_path / "a.gz")
    written(tmp_path / "b.gz")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
