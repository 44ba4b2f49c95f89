"""Finished runs in a folder, each under a key of all that it depends on: what is there need not be run again.

The key is a digest of the program's own files, of the run as it is resolved (the scenario without titles, tables and claims, with
axis values and settings put in), of its seed and its service level, and of the content of every file that it reads. So a result is
taken only where running again would give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec

import epdsim
from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.scenario.jobs import Job, JobResult, loaded_once
from epdsim.workload.blis import header_beside
from epdsim.workload.specs import resolve_path

FORMAT = "epdsim-result"
VERSION = 2
_SAYS_NOTHING = (
    "name",
    "title",
    "source",
    "assumptions",
    "seed",
    "axes",
    "runs",
    "columns",
    "fit",
    "published",
    "claims",
    "slo",
    "plan",
    "goodput",
)
"""Sections of a resolved scenario that no run depends on: what of them matters is in the job."""
_RESOLVED = ("path", "overrides", "constants")
"""What of a job the resolved scenario has in it."""
_PIECE = 1 << 20


class _Entry(msgspec.Struct):
    format: str
    version: int
    key: str
    about: dict[str, Any]
    result: JobResult


class ResultStore:
    """A folder of finished runs, one file each; several programs may use it at the same time.

    Args:
        folder: Made when it is not there.

    Raises:
        InputError: It cannot be made, or is no folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = f"it cannot be used ({error.strerror or error})"
            raise InputError(f"--store {str(folder)!r}", rule, "choose another folder") from error

    def get(self, key: str) -> JobResult | None:
        """A result, None where there is none that can be read: a damaged file is as good as none."""
        try:
            return _read(self._path(key).read_bytes(), key)
        except OSError:
            return None

    def put(self, key: str, result: JobResult, about: Mapping[str, Any]) -> None:
        """Keep a result; the file is there whole or not at all.

        Args:
            key: Of the run.
            result: What it came to.
            about: Scenario, point and seed, for a person who looks into the folder.

        Raises:
            InputError: It cannot be written, or would not come back the same.
        """
        content = msgspec.json.encode(_Entry(FORMAT, VERSION, key, dict(about), result))
        told = f"--store {str(self.folder)!r}"
        if _read(content) != result:
            raise InputError(told, "a result has a number that JSON has no form for", "do without the store")
        with whole_file(self._path(key), told) as file:
            file.write(content)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def _read(content: bytes, key: str | None = None) -> JobResult | None:
    try:
        entry = msgspec.json.decode(content, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    is_it = (entry.format, entry.version, entry.key) == (FORMAT, VERSION, entry.key if key is None else key)
    return entry.result if is_it else None


def job_key(job: Job) -> str:
    """What the result of a job is stored under.

    Raises:
        InputError: It cannot be built.
    """
    scenario = loaded_once(job.path, job.overrides)
    spec = scenario.at(job.point, job.constants).model_dump(mode="json")
    resolved = {name: value for name, value in spec.items() if name not in _SAYS_NOTHING}
    files = {told: _digest_of(path) for told, path in _files(resolved, scenario.folder)}
    job_itself = {one.name: getattr(job, one.name) for one in fields(job) if one.name not in _RESOLVED}
    search = spec["goodput"] if job.at_goodput else None
    body = {"code": _code(), "run": resolved, "files": files, "search": search, **job_itself}
    return sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def _files(value: object, folder: Path, key: str = "") -> Iterator[tuple[str, Path]]:
    """Files that a resolved scenario names, and those of the folders that a `path` in it names."""
    if isinstance(value, dict):
        for name, one in cast("dict[str, object]", value).items():
            yield from _files(one, folder, name)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _files(one, folder, key)
    elif isinstance(value, str) and value and "\0" not in value:
        try:
            path = resolve_path(value, folder)
            found = sorted(path.iterdir()) if key == "path" and path.is_dir() else [path]
            beside = header_beside(path) if key == "path" else None
            for one in (*found, *([beside] if beside else [])):
                if one.is_file():
                    yield f"{value}/{one.name}", one
        except (InputError, OSError):
            return  # a text that is no path at all


def _digest_of(path: Path) -> str:
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@cache
def _digest(path: Path, _size: int, _changed_ns: int) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


@cache
def _code() -> str:
    """A digest of the program: another version, or a changed line, may give other results."""
    root = Path(epdsim.__file__).parent
    digest = sha256(epdsim.__version__.encode())
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
