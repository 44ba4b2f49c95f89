"""ServeGen's client sets (Alibaba Cloud, arXiv 2505.09999) as they lie on disk: per client, rates by window and histograms.

`chunk-<client>-trace.csv`, without header: `window_start_s, rate_req_s, cv, pattern, arg1, arg2`, windows of 600 s, the pattern
`Gamma` or `Weibull` with shape and scale of the inter-arrival times, empty for an idle window. `chunk-<client>-dataset.json`: by
start of a longer window, fields to the text of a Python dict `{value: probability}`.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.workload.arrivals import MAX_CV, MIN_WEIBULL_SHAPE, GapLaw
from epdsim.workload.distributions import Integers, WeightedTable

WINDOW_S = 600.0
_CHUNK = re.compile(r"(?:.*/)?chunk-(\d+)-(trace\.csv|dataset\.json)")


@record
class RateWindow:
    """One window of one client: so many requests a second, with such gaps."""

    rate_req_s: float
    law: GapLaw


@dataclass(slots=True)
class Client:
    """One client of a set.

    Attributes:
        number: As in the file names.
        windows: By start in seconds; idle windows are absent.
        end_s: Where the last window ends.
        histograms: By start in seconds, field to the text of its histogram; parsed when first used.
    """

    number: int
    windows: Mapping[float, RateWindow]
    end_s: float
    histograms: Mapping[float, Mapping[str, str]]
    _starts: list[float] = field(init=False)
    _parsed: dict[tuple[float, str], tuple[Integers, WeightedTable] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = sorted(self.histograms)

    def draw(self, rng: np.random.Generator, time_s: float, name: str, count: int) -> Integers:
        """`count` values of a field at a time; zeros when the set has no such field.

        Raises:
            InputError: The histogram cannot be parsed.
        """
        if count == 0:
            return np.zeros(0, dtype=np.int64)  # A client that is idle for hours has empty histograms.
        start = self._starts[max(0, bisect_right(self._starts, time_s) - 1)]
        if (start, name) not in self._parsed:
            text = self.histograms[start].get(name)
            where = f"client {self.number}, field {name!r} from {start:g} s"
            self._parsed[start, name] = None if text is None else _parse_histogram(text, where)
        table = self._parsed[start, name]
        return np.zeros(count, dtype=np.int64) if table is None else table[0][table[1].draw(rng, count)]


def _parse_histogram(text: str, where: str) -> tuple[Integers, WeightedTable]:
    try:
        table = {_whole(value): float(weight) for value, weight in ast.literal_eval(text).items()}
        return np.fromiter(table, dtype=np.int64), WeightedTable(tuple(table.values()))
    except (ValueError, TypeError, SyntaxError, AttributeError, MemoryError, RecursionError, OverflowError) as error:
        raise InputError(
            f"ServeGen histogram of {where}", f"is not a table of value and probability ({error})"
        ) from error


def _whole(value: float) -> int:
    if value != int(value) or value < 0:
        raise ValueError(f"the value {value!r} is not a whole number from 0")
    return int(value)


def _read_files(path: Path) -> dict[tuple[int, str], bytes]:
    """The files of a set by client and kind, from a folder or a tar archive.

    Raises:
        InputError: There is no set, or it cannot be read.
    """
    found: dict[tuple[int, str], bytes] = {}
    try:
        if path.is_dir():
            for file in path.iterdir():
                if match := _CHUNK.fullmatch(file.name):
                    found[int(match[1]), match[2]] = file.read_bytes()
        elif path.is_file():
            with tarfile.open(path) as archive:
                for member in archive:
                    content = archive.extractfile(member) if (match := _CHUNK.fullmatch(member.name)) else None
                    if match and content is not None:
                        found[int(match[1]), match[2]] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"ServeGen set {str(path)!r}", f"cannot be read ({error})") from error
    if not found:
        raise InputError(
            f"ServeGen set {str(path)!r}", "holds no chunk-<client>-trace.csv", "name the folder that holds the chunks"
        )
    return found


def read_clients(path: Path, numbers: Sequence[int] | None = None) -> list[Client]:
    """The clients of a set, by number.

    Args:
        path: Folder, or tar archive, of chunk files.
        numbers: Only these clients; all when None.

    Raises:
        InputError: The set, a file or a line of it cannot be used, or a client is not in it.
    """
    files = _read_files(path)
    known = sorted({number for number, _ in files})
    unknown = sorted(set(numbers or ()) - set(known))
    if unknown:
        raise InputError(
            f"clients {unknown}", f"are not in the ServeGen set {str(path)!r}", f"it has {known[0]} to {known[-1]}"
        )
    clients: list[Client] = []
    for number in known if numbers is None else sorted(set(numbers)):
        for kind in ("trace.csv", "dataset.json"):
            if (number, kind) not in files:
                raise InputError(
                    f"ServeGen set {str(path)!r}", f"chunk-{number}-{kind} is missing", "fetch the set again"
                )
        windows, end_s = _read_windows(files[number, "trace.csv"], f"{path}/chunk-{number}-trace.csv")
        histograms = _read_dataset(files[number, "dataset.json"], f"{path}/chunk-{number}-dataset.json")
        clients.append(Client(number, windows, end_s, histograms))
    return clients


def _read_windows(content: bytes, where: str) -> tuple[dict[float, RateWindow], float]:
    windows: dict[float, RateWindow] = {}
    end_s = 0.0
    for number, cells in enumerate(csv.reader(io.StringIO(content.decode(errors="replace"))), start=1):
        if not cells:
            continue
        try:
            start_s, window = _parse_window(cells)
        except ValueError as error:
            remedy = "a line is window_start_s,rate_req_s,cv,pattern,arg1,arg2"
            raise InputError(
                f"{where}, line {number} {','.join(cells)[:60]!r}", f"cannot be used ({error})", remedy
            ) from error
        end_s = max(end_s, start_s + WINDOW_S)
        if window is not None:
            windows[start_s] = window
    return windows, end_s


def _parse_window(cells: list[str]) -> tuple[float, RateWindow | None]:
    """Start of a window and its arrivals, None when idle; ValueError for anything else."""
    if len(cells) != 6:
        raise ValueError(f"{len(cells)} cells, not 6")
    start, rate, _cv, pattern, shape, _scale = cells
    start_s, rate_req_s = float(start), float(rate)
    if not (0 <= start_s < math.inf) or start_s % WINDOW_S:
        raise ValueError(f"a window starts at a multiple of {WINDOW_S:g} s")
    if not (0 <= rate_req_s < math.inf):
        raise ValueError("a rate is finite and at least 0")
    return start_s, RateWindow(rate_req_s, _gap_law(pattern, float(shape))) if pattern and rate_req_s else None


def _gap_law(pattern: str, shape: float) -> GapLaw:
    smallest = MAX_CV**-2 if pattern == "Gamma" else MIN_WEIBULL_SHAPE
    if pattern not in {"Gamma", "Weibull"}:
        raise ValueError(f"the pattern {pattern!r} is neither Gamma nor Weibull")
    if not (smallest <= shape < math.inf):
        raise ValueError(f"the shape {shape} is not at least {smallest:g}")
    return GapLaw("Gamma" if pattern == "Gamma" else "Weibull", shape)


def _read_dataset(content: bytes, where: str) -> dict[float, dict[str, str]]:
    try:
        given: Any = json.loads(content)
        histograms = {
            float(start): {str(name): str(text) for name, text in fields.items()} for start, fields in given.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            where, f"is not a ServeGen dataset ({error})", "it may be cut in half; fetch the set again"
        ) from error
    if not histograms:
        raise InputError(where, "holds no histograms")
    return histograms
