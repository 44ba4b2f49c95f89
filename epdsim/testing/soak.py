"""Soaking: property runs over many seeds, each in a process of its own, kept as they end.

A soak's file is one header line and one line per seed. What a seed found depends on nothing but system, dialect, properties, budget
and seed, so that files of several machines merge into what one machine would have found, and a soak that was interrupted goes on
with the seeds that are missing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec

from epdsim import __version__
from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.testing.verdicts import FAILED, ReportedOutcome

Report = Mapping[str, Any]
"""What a seed found: `seed`, and `verdicts` as `epdsim check --report` writes them, or `died` with why there are none."""


@record
class Soak:
    """What is soaked.

    Attributes:
        sut: System under test.
        dialect: Of the reference; None for its default.
        properties: Ids or families; empty for all.
        budget: Cases of each exploration, per seed.
        version: Dialect or release of the system.
        epdsim: Version of the properties.
    """

    sut: str = "reference"
    dialect: str | None = None
    properties: tuple[str, ...] = ()
    budget: int = 150
    version: str | None = None
    epdsim: str = __version__


@dataclass(slots=True)
class Tally:
    """A property over all seeds.

    Attributes:
        num_reached: Times that its premise was met.
        violated: Seeds that violate it.
        failed: Seeds whose test of it came to no verdict.
        smallest: The shortest story of those, with its `lines` and the `replay` line; of equal ones that of the lowest seed.
        reason: Why the lowest of the seeds that failed did.
    """

    num_reached: int = 0
    violated: list[int] = field(default_factory=list[int])
    failed: list[int] = field(default_factory=list[int])
    smallest: Mapping[str, Any] | None = None
    reason: str = ""

    @property
    def outcome(self) -> str:
        """Violated, failed, holds, or inconclusive."""
        if self.violated:
            return "violated"
        return FAILED if self.failed else "holds" if self.num_reached else "inconclusive"


class _Story(msgspec.Struct):
    """What a tally reads of a story."""

    lines: list[str]
    replay: str = ""
    reason: str = ""


class _Verdict(msgspec.Struct):
    """What a tally reads of a verdict."""

    id: str
    outcome: ReportedOutcome
    num_reached: Annotated[int, msgspec.Meta(ge=0)] = 0
    stories: list[_Story] = msgspec.field(default_factory=list[_Story])
    reason: str = ""


class _Line(msgspec.Struct):
    """A seed's line in a file."""

    seed: Annotated[int, msgspec.Meta(ge=0)]
    verdicts: list[_Verdict]


def tallies(reports: Iterable[Report]) -> dict[str, Tally]:
    """All seeds together, by property; in whatever order and however often they come."""
    told: dict[str, Tally] = {}
    by_seed = {report["seed"]: report for report in reports}
    for seed, report in sorted(by_seed.items()):
        for verdict in report.get("verdicts", ()):
            if verdict["outcome"] == "not run":
                continue
            tally = told.setdefault(verdict["id"], Tally())
            tally.num_reached += verdict.get("num_reached", 0)
            if verdict["outcome"] == "violated":
                tally.violated.append(seed)
            if verdict["outcome"] == FAILED:
                tally.failed.append(seed)
                tally.reason = tally.reason or verdict.get("reason", "")
            for story in verdict.get("stories", ()):
                if tally.smallest is None or len(story["lines"]) < len(tally.smallest["lines"]):
                    tally.smallest = story
    return dict(sorted(told.items()))


class SoakFile:
    """The results of a soak, a line per seed, written as they come.

    Args:
        path: New, or of an earlier soak of the same things.
        soak: What is soaked.

    Raises:
        InputError: It cannot be read or written, or holds the results of another soak.
    """

    def __init__(self, path: Path, soak: Soak) -> None:
        self.path, self.soak = path, soak
        self.reports: dict[int, Report] = {}
        try:
            self._file: IO[bytes] = path.open("a+b", buffering=0)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._start(path)
        except BaseException:
            self._file.close()
            raise

    def _start(self, path: Path) -> None:
        self._lock()
        if end := self._read(path) if path.stat().st_size else 0:
            self._file.truncate(end)  # a line that was cut off when its writer was killed
        else:
            self._write(asdict(self.soak))

    def add(self, report: Report) -> None:
        """Keep what a seed found.

        Raises:
            InputError: It cannot be written; what came before is kept.
        """
        self._write(report)
        if "died" not in report:
            self.reports[report["seed"]] = report

    def merge(self, other: Path) -> int:
        """Take the seeds of another file that are not here; how many they are.

        Raises:
            InputError: It cannot be read, or is of another soak.
        """
        before = dict(self.reports)
        try:
            self._read(other)
        except OSError as error:
            raise InputError(
                str(other), f"it cannot be read ({error.strerror or error})", "name a soak's file"
            ) from error
        found = {seed: report for seed, report in self.reports.items() if seed not in before}
        self.reports = before
        for report in found.values():
            self.add(report)
        return len(found)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, path: Path) -> int:
        """Take a file's seeds; where its last whole line ends."""
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                told = json.loads(line)
                if number > 1 and "died" not in told:
                    self.reports[msgspec.convert(told, _Line).seed] = told
            except (ValueError, TypeError, RecursionError) as error:  # of msgspec's errors too
                raise InputError(f"{path}, line {number}", "not a line of a soak", "name a soak's file") from error
            if number == 1:
                self._check_header(path, told)
        if not lines:
            raise InputError(str(path), "it holds no soak", "name a soak's file")
        return end

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                str(self.path), "another soak writes it now", "name another file, and merge them later"
            ) from error

    def _check_header(self, path: Path, told: Any) -> None:
        wanted = json.loads(json.dumps(asdict(self.soak)))
        if told != wanted:
            known = told if isinstance(told, dict) else {}
            differing = [f"{key} {known.get(key)!r}" for key, value in wanted.items() if known.get(key) != value]
            rule = f"it is a soak of something else ({', '.join(differing) or 'more'})"
            raise InputError(str(path), rule, "name another file, or the same options")

    def _write(self, told: Mapping[str, Any]) -> None:
        begin = self._file.seek(0, os.SEEK_END)
        try:
            line = json.dumps(told).encode() + b"\n"
            num_written = self._file.write(line)
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(begin)
            raise self._unusable(error) from error
        if num_written < len(line):
            self._file.truncate(begin)
            raise self._unusable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _unusable(self, error: OSError) -> InputError:
        kept = f"; seeds kept: {len(self.reports):,}" if self.reports else ""
        return InputError(
            str(self.path), f"it cannot be used ({error.strerror or error}){kept}", "choose another place or free room"
        )


def check_seed(soak: Soak, seed: int) -> Report:
    """Run the properties with one seed, in a process of its own: whatever becomes of it, the soak goes on."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--sut", soak.sut, "--budget", str(soak.budget), "--seed", str(seed), "--report", str(report)]
        options += ["--dialect", soak.dialect] if soak.dialect else []
        options += [word for one in soak.properties for word in ("--property", one)]
        command = [
            sys.executable,
            "-c",
            "from epdsim.cli import main; main()",
            "check",
            *options,
            "--max-time",
            "1e9",
            "--no-progress",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this program itself
        if not report.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return {"seed": seed, "died": last[0]}
        return {"seed": seed, "verdicts": json.loads(report.read_text(encoding="utf-8"))["verdicts"]}


Workers = Callable[[Soak, Iterator[int], int], Iterator[Report]]
"""Runs seeds, so many at once, and yields what they found as they end; it takes seeds from the iterator as they are due."""


def on_this_machine(soak: Soak, seeds: Iterator[int], num_jobs: int) -> Iterator[Report]:
    """Seeds in processes of this machine."""
    with ThreadPoolExecutor(num_jobs) as pool:
        running: set[Future[Report]] = set()
        try:
            while True:
                for seed in _next(seeds, num_jobs - len(running)):
                    running.add(pool.submit(check_seed, soak, seed))
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for one in ended:
                    yield one.result()
        finally:
            for one in running:
                one.cancel()


def start_ray() -> Any:
    """Ray, connected to the cluster that there is, or to this machine as one; the extra `distributed` brings it.

    Raises:
        InputError: It is not installed.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise InputError("--ray", "Ray is not installed", "install epdsim[distributed]") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="ERROR")
    return ray


def on_ray(soak: Soak, seeds: Iterator[int], num_jobs: int) -> Iterator[Report]:
    """Seeds on the machines of a Ray cluster.

    Raises:
        InputError: Ray is not installed.
    """
    ray = start_ray()
    remote = ray.remote(check_seed)
    running: list[Any] = []
    while True:
        running += [remote.remote(soak, seed) for seed in _next(seeds, num_jobs - len(running))]
        if not running:
            return
        ended, running = ray.wait(running)
        yield from ray.get(ended)


def _next(seeds: Iterator[int], most: int) -> Iterator[int]:
    for _ in range(most):
        seed = next(seeds, None)
        if seed is None:
            return
        yield seed


def due(first: int, stop: int | None, known: Iterable[int], max_seconds: float | None) -> Iterator[int]:
    """Seeds that are missing, until all are done or the time is over; a seed that has begun is always finished."""
    begun, done = time.monotonic(), set(known)
    for seed in count(first) if stop is None else range(first, stop):
        if max_seconds is not None and time.monotonic() - begun > max_seconds:
            return
        if seed not in done:
            yield seed
