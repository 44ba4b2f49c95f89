"""Which known form a file of traffic has, by its first line."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from epdsim.core.errors import InputError
from epdsim.core.files import read_whole
from epdsim.workload.blis_file import MOST_YAML_BYTES
from epdsim.workload.csv_rows import check_commas
from epdsim.workload.own_csv import COLUMNS, REQUIRED
from epdsim.workload.trace_files import line_error, read_lines, require_file
from epdsim.workload.trace_header import FORMAT

FORMATS = (
    "csv",
    "jsonl",
    "mooncake-jsonl",
    "bailian-jsonl",
    "aiperf-jsonl",
    "aiperf-multi-turn",
    "azure-csv",
    "burstgpt-csv",
    "blis-csv",
    "blis-yaml",
    "servegen",
)
"""Kinds of workloads that are read from a file or a folder."""

_MEDIA_KEYS = {"text", "texts", "image", "images", "image_uuids", "audio", "audios", "video", "videos", "turns"}
_BLIS_KEYS = {"cohorts", "inference_perf", "aggregate_rate"}
_OWN_KEYS = {"mm_items", "runs", "request_id", "session_id", "priority", "slo_class"}


def detect_format(path: Path) -> str:
    """The kind of workload that reads a file, one of `FORMATS`.

    Raises:
        InputError: There is no such file, or it has none of the known forms.
    """
    if path.is_dir() or path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return "servegen"
    require_file(path, "trace")
    if is_blis_yaml(path):
        return "blis-yaml"
    for number, line in read_lines(path):
        if line.strip():
            return _of_json(path, number, line) if line.lstrip()[:1] == b"{" else _of_csv(path, number, line)
    raise InputError(f"trace {str(path)!r}", "is empty")


def is_blis_yaml(path: Path) -> bool:
    """Whether a file is YAML with the keys of a BLIS description, which no scenario has."""
    if path.suffix not in {".yaml", ".yml"}:
        return False
    try:
        given: Any = yaml.safe_load(read_whole(path, MOST_YAML_BYTES))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return False  # whoever reads it will say so
    if not isinstance(given, dict):
        return False
    keys = cast("dict[Any, Any]", given)
    return not _BLIS_KEYS.isdisjoint(keys) or isinstance(keys.get("clients"), list)


def _of_json(path: Path, number: int, line: bytes) -> str:
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = line.decode(errors="replace").rstrip()
        raise line_error(path, number, shown, f"is no JSON ({error})", "complete or drop the line") from error
    keys = set(record)
    if record.get("format") == FORMAT:
        return "jsonl"
    if {"chat_id", "parent_chat_id"} <= keys:
        return "bailian-jsonl"
    if {"timestamp", "input_length", "output_length"} <= keys:
        return "jsonl" if keys & _OWN_KEYS else "mooncake-jsonl"
    if "turns" in keys:
        return "aiperf-multi-turn"
    if keys & _MEDIA_KEYS:
        return "aiperf-jsonl"
    raise _unknown(path, number, sorted(keys))


def _of_csv(path: Path, number: int, line: bytes) -> str:
    header = next(csv.reader([line.decode(errors="replace")], skipinitialspace=True), [])
    check_commas(header, path, number)
    names = {name.strip().lower() for name in header}
    if {"timestamp", "contexttokens", "generatedtokens"} <= names:
        return "azure-csv"
    if {"timestamp", "request tokens", "response tokens"} <= names:
        return "burstgpt-csv"
    if {"arrival_time_us", "input_tokens", "output_tokens"} <= names:
        return "blis-csv"
    if all(names & set(COLUMNS[name]) for name in REQUIRED):
        return "csv"
    lacking = [name for name in REQUIRED if not names & set(COLUMNS[name])]
    own = "--from csv --set 'columns={" + ", ".join(f"{name}: NAME" for name in lacking) + "}'"
    raise _unknown(path, number, header, f"; a CSV of your own is read with {own}")


def _unknown(path: Path, number: int, names: Sequence[str], more: str = "") -> InputError:
    told = ", ".join(names)[:80]
    rule = f"has {told!r}, which is the start of no form that is known"
    return line_error(path, number, "", rule, f"name it with --from ({', '.join(FORMATS)}){more}")
