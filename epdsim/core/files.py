"""Files that are there whole or not at all, whoever else writes beside them."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from epdsim.core.errors import InputError


def check_place(path: Path, told: str) -> None:
    """See that a file can go to a place, before the work that fills it.

    Args:
        path: Where it will go.
        told: The file in the user's terms, for the error.

    Raises:
        InputError: There is no such folder, or the place is a folder.
    """
    if path.is_dir():
        raise InputError(told, "it is a folder", "name a file in it")
    if not path.parent.is_dir():
        raise InputError(told, "its folder does not exist", "create it or choose another place")
    target, replaces = _target(path)
    part = _part(target) if replaces else target
    try:
        if target.exists():
            _need_write(target)
        if replaces:
            part.touch()
    except OSError as error:
        raise _unwritable(told, error) from error
    finally:
        if replaces:
            part.unlink(missing_ok=True)


def check_apart(outputs: Mapping[str, Path], inputs: Iterable[Path]) -> None:
    """See that no file to write is another one, or one that is read; devices and pipes may take several.

    Args:
        outputs: By the option or the words that name them.
        inputs: Files that the work reads.

    Raises:
        InputError: Two are the same file, under whatever names.
    """
    read = {os.path.realpath(path): path for path in inputs}
    taken: dict[str, str] = {}
    for told, path in outputs.items():
        target, replaces = _target(path)
        place = os.path.realpath(target)
        if not replaces:
            continue
        if place in read or any(_is_same(target, one) for one in read.values()):
            raise InputError(f"{told} {str(path)!r}", "the run reads this file", "choose another place")
        if place in taken:
            raise InputError(f"{told} {str(path)!r}", f"{taken[place]} goes into the same file", "name two files")
        taken[place] = told


def read_whole(path: Path, max_bytes: int) -> bytes:
    """A small file's content; what is longer is not what it should be, and a device may never end.

    Raises:
        OSError: It cannot be read.
        InputError: It is longer than `max_bytes`.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InputError(str(path), f"it is larger than {max_bytes:,} bytes", "name the file that was meant")
    return content


def _is_same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)


def _target(path: Path) -> tuple[Path, bool]:
    """Where the bytes go once links are followed, and whether that is a file, which is replaced as a whole."""
    target = Path(os.path.realpath(path))
    return target, target.is_file() or not target.exists()


def _part(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def _need_write(target: Path) -> None:
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unwritable(told: str, error: OSError) -> InputError:
    return InputError(told, f"it cannot be written ({error.strerror or error})", "choose another place")


@contextmanager
def whole_file(path: Path, told: str) -> Generator[IO[bytes], None, None]:
    """A file to write that takes its name when the block ends, and is removed when the block fails.

    The name of the unfinished file is the process's own, so that two runs with one target do not mix: the last to end wins. A link
    keeps pointing where it does. A device or a pipe cannot be replaced and takes the bytes as they come. With `.gz` the content is
    compressed; neither time nor name goes into the archive, so that equal content gives equal bytes.

    Args:
        path: Where it will go.
        told: The file in the user's terms, for the error.

    Raises:
        InputError: It cannot be written, at first or later (a full disk).
    """
    check_place(path, told)
    target, replaces = _target(path)
    part = _part(target) if replaces else target
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield raw
        if replaces:
            part.replace(target)
    except OSError as error:
        raise _unwritable(told, error) from error
    finally:
        if replaces:
            part.unlink(missing_ok=True)
