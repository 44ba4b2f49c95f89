"""Files that are there whole or not at all, whoever else writes beside them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Generator
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
    target = Path(os.path.realpath(path))
    replaces = target.is_file() or not target.exists()
    part = target.with_name(f".{target.name}.{os.getpid()}.part") if replaces else target
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
        reason = f"it cannot be written ({error.strerror or error})"
        raise InputError(told, reason, "choose another place") from error
    finally:
        if replaces:
            part.unlink(missing_ok=True)
