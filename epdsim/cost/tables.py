"""Reading of latency tables (CSV) as users bring them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from epdsim.core.errors import InputError
from epdsim.core.files import read_whole
from epdsim.cost.hardware import gpu
from epdsim.cost.models import plain_name

_MAX_BYTES = 1 << 26


class LmRow(NamedTuple):
    """One line of a step latency table.

    Attributes:
        phase: `prefill` (`batch` sequences of `context_tokens` new tokens) or `decode` (`batch` sequences at that context).
    """

    phase: str
    batch: int
    context_tokens: int
    step_ms: float


class EncodeRow(NamedTuple):
    """One line of an encoder latency table: `num_images` equal images in one run."""

    patches_per_image: int
    num_images: int
    encoder_ms: float


class Selection(NamedTuple):
    """Which lines of a table count; None takes any, and then the table may hold one only."""

    model: str | None = None
    system: str | None = None
    tp: int | None = None


ANY = Selection()


def read_lm_rows(path: Path, which: Selection = ANY) -> list[LmRow]:
    """Lines of a CSV with columns phase, batch, context_tokens, step_ms and, where it covers several, model, system, tp.

    Raises:
        InputError: When the file is missing, a column or number is, or the selection matches nothing or more than one set-up.
    """
    rows: list[LmRow] = []
    for place, line in _selected(path, which, ("phase", "batch", "context_tokens", "step_ms")):
        phase = line["phase"]
        if phase not in {"prefill", "decode"}:
            raise InputError(f"{place}: phase {phase!r}", "must be prefill or decode")
        batch, context = _integer(place, line, "batch"), _integer(place, line, "context_tokens")
        rows.append(LmRow(phase, batch, context, _positive(place, line, "step_ms")))
    return rows


def read_encode_rows(path: Path, which: Selection = ANY) -> list[EncodeRow]:
    """Lines of a CSV with columns patches_per_image, num_images, encoder_ms and, where it covers several, model, system.

    Raises:
        InputError: As for `read_lm_rows`.
    """
    rows: list[EncodeRow] = []
    for place, line in _selected(path, which, ("patches_per_image", "num_images", "encoder_ms")):
        patches, images = _integer(place, line, "patches_per_image"), _integer(place, line, "num_images")
        rows.append(EncodeRow(patches, images, _positive(place, line, "encoder_ms")))
    return rows


def _selected(path: Path, which: Selection, columns: Sequence[str]) -> list[tuple[str, Mapping[str, str]]]:
    try:
        reader = csv.DictReader(StringIO(read_whole(path, _MAX_BYTES).decode("utf-8"), newline=""))
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}", f"has no column {', '.join(missing)}")
        lines: list[tuple[str, Mapping[str, str]]] = [(f"{path}:{reader.line_num}", line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}", f"cannot be read as a CSV table ({error})") from error
    chosen = [(place, line) for place, line in lines if _matches(line, which)]
    setups = sorted({(line.get("model"), line.get("system"), line.get("tp")) for _, line in chosen}, key=str)
    if not chosen:
        raise InputError(f"{path}", f"has no line for {_told(which)}")
    if len(setups) > 1:
        raise InputError(f"{path}", f"holds {len(setups)} set-ups for {_told(which)}", "choose model, system and tp")
    return chosen


def _matches(line: Mapping[str, str], which: Selection) -> bool:
    model, system, tp = line.get("model"), line.get("system"), line.get("tp")
    return (
        (which.model is None or model is None or plain_name(model) == plain_name(which.model))
        and (which.system is None or system is None or _plain_system(system) == _plain_system(which.system))
        and (which.tp is None or tp is None or tp == str(which.tp))
    )


def _plain_system(name: str) -> str:
    try:
        return gpu(name).name
    except InputError:
        return name.lower()


def _told(which: Selection) -> str:
    given = [f"{name} {value}" for name, value in zip(which._fields, which, strict=True) if value is not None]
    return ", ".join(given) or "any set-up"


def _integer(place: str, line: Mapping[str, str], name: str) -> int:
    value = _positive(place, line, name)
    if value != int(value):
        raise InputError(f"{place}: {name} {line[name]!r}", "must be a whole number")
    return int(value)


def _positive(place: str, line: Mapping[str, str], name: str) -> float:
    text = line[name]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = float("nan")
    if not (isfinite(value) and value > 0):
        raise InputError(f"{place}: {name} {text!r}", "must be a finite number above 0")
    return value
