"""The replay of wire recordings: any of the form, and differences and damage told by line."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epdsim.core.errors import InputError
from epdsim.sut.wire_recording import replay_wire
from epdsim.wire import PickleRefusedError

GRID = {
    "data": {"dtype": "int64", "shape": [1], "hex": "01" + "00" * 7},
    "field": {"kind": "batched", "keep_on_cpu": True},
}
GRID_BLOB = "gaRncmlkgqRkYXRhk6VpbnQ2NJEB1wMBAAAAAAAAAKVmaWVsZJKnYmF0Y2hlZIGra2VlcF9vbl9jcHXD"
MEL = {"data": 1.5, "field": {"kind": "shared", "keep_on_cpu": False, "batch_size": 2}}
MEL_BLOB = "gaNtZWyCpGRhdGHLP/gAAAAAAAClZmllbGSSpnNoYXJlZIKra2VlcF9vbl9jcHXCqmJhdGNoX3NpemUC"

ITEMS = [
    {"item": {"grid": GRID}, "b64": GRID_BLOB, "reencodes_identically": True},
    {"item": {"mel": MEL}, "b64": MEL_BLOB},
]
EXTRACTS = [
    {
        "mm_hashes": {"image": ["a", "b"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 2}, {"offset": 3, "length": 1}]},
        "mm_kwargs": {"image": [{"grid": GRID}, None]},
        "declared_metadata_fields": {"image": []},
        "kwargs_data": {"image": [GRID_BLOB, None]},
        "mm_metadata": {"image": [GRID_BLOB, None]},
    },
    {
        "mm_hashes": {"image": ["a"], "audio": ["c"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 2}], "audio": [{"offset": 3, "length": 1}]},
        "mm_kwargs": {"image": [{"grid": GRID}], "audio": [{"mel": MEL}]},
        "declared_metadata_fields": {},
        "error": "mm_metadata: the modalities differ",
    },
]
REQUESTS = [
    {"body": {"token_ids": [1], "sampling_params": {}}, "verdict": "accept", "errors": None},
    {
        "body": {"token_ids": [], "sampling_params": {}},
        "verdict": "reject",
        "errors": [{"loc": ["token_ids"], "msg": ""}],
    },
    {"body": 5, "verdict": "reject", "errors": None},
]


def write(folder: Path, *, gzipped: bool = True, release: str = "0.32.0", **changed: list[Any]) -> Path:
    """A small recording, with the named tables changed."""
    tables = {"items": ITEMS, "extracts": EXTRACTS, "requests": REQUESTS} | changed
    for name, lines in tables.items():
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        if gzipped:
            (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"{name}.jsonl").write_bytes(text)
    meta = {"vllm": release, "seed": 1} | {name: len(lines) for name, lines in tables.items()}
    (folder / "META.json").write_text(json.dumps(meta))
    return folder


@pytest.mark.parametrize("gzipped", [True, False])
def test_a_sound_recording_is_equal(tmp_path: Path, gzipped: bool):
    report = replay_wire(write(tmp_path, gzipped=gzipped))
    assert report.is_equal, report.first_difference
    assert [(row.equal, row.total) for row in report.counts] == [(2, 2), (2, 2), (2, 2), (2, 2), (3, 3), (1, 1)]
    assert report.release == "vllm 0.32.0"
    assert report.recording == str(tmp_path)


def test_counts_need_not_be_stated(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "META.json").write_text('{"vllm": "0.32.0"}')
    assert replay_wire(tmp_path).is_equal


def test_the_dialect_is_that_of_the_recorded_release(tmp_path: Path):
    report = replay_wire(write(tmp_path, release="0.29.1"))
    assert not report.is_equal
    assert any("vllm-0.29" in row.what for row in report.counts)


DIFFERENT: list[tuple[dict[str, list[Any]], str, str]] = [
    (
        {"items": [ITEMS[0], ITEMS[1] | {"b64": GRID_BLOB}]},
        "items.jsonl.gz, line 2, b64 of field 'mel', from character 2 ",
        "items byte-equal",
    ),
    (
        {"items": [ITEMS[0] | {"b64": GRID_BLOB[:-8] + MEL_BLOB[-8:]}]},
        "items.jsonl.gz, line 1, b64, from character 72",
        "items byte-equal",
    ),
    ({"items": [ITEMS[0] | {"reencodes_identically": False}]}, "line 1, reencodes_identically", "items byte-equal"),
    (
        {"extracts": [EXTRACTS[0] | {"mm_metadata": None}]},
        "line 1, payload and metadata",
        "extracts rendered by the ideal",
    ),
    (
        {"extracts": [EXTRACTS[1] | {"error": "the hashes overlap"}]},
        "line 1, result",
        "extracts equal in the vllm-0.32",
    ),
    ({"requests": [REQUESTS[0] | {"verdict": "reject"}]}, "requests.jsonl.gz, line 1, verdict", "request verdicts"),
    ({"requests": [REQUESTS[1] | {"errors": [{"loc": ["stream"], "msg": ""}]}]}, "line 1, errors", "error locations"),
]


@pytest.mark.parametrize(("changed", "place", "row"), DIFFERENT)
def test_a_difference_is_told_with_place_field_and_both_values(
    tmp_path: Path, changed: dict[str, list[Any]], place: str, row: str
):
    report = replay_wire(write(tmp_path, **changed))
    assert not report.is_equal
    assert place in report.first_difference[0]
    assert report.first_difference[1].startswith("  recorded: ")
    assert report.first_difference[2].startswith("  ours: ")
    assert [one.what for one in report.counts if one.equal != one.total and one.what.startswith(row)]


def cut(folder: Path) -> None:
    whole = (folder / "items.jsonl.gz").read_bytes()
    (folder / "items.jsonl.gz").write_bytes(whole[:-20])


def spoil(name: str, line: int, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / f"{name}.jsonl.gz"
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        lines[line - 1] = text
        file.write_bytes(gzip.compress("\n".join(lines).encode()))

    return change


DAMAGED: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "META.json").unlink(), r"META.json: it cannot be read"),
    (lambda folder: (folder / "META.json").write_text("{}"), r"META.json: it does not name a release"),
    (
        lambda folder: (folder / "META.json").write_text('{"vllm": "0.11.0"}'),
        r"META.json: dialect 'vllm-0.11.0'.*vllm-0.33",
    ),
    (lambda folder: (folder / "META.json").write_text('{"vllm": "0.32.0", "items": 3}'), r"items.jsonl.gz has 2 lines"),
    (lambda folder: (folder / "extracts.jsonl.gz").unlink(), r"no extracts.jsonl and no extracts.jsonl.gz"),
    (
        lambda folder: (folder / "items.jsonl.gz").write_bytes(b"plain text"),
        r"items.jsonl.gz, line 1: it cannot be read",
    ),
    (cut, r"items.jsonl.gz, line \d: it cannot be read"),
    (spoil("requests", 2, '{"body": 1'), r"requests.jsonl.gz, line 2: it is no line of requests"),
    (spoil("requests", 1, "{}"), r"requests.jsonl.gz, line 1: it is no line of requests.*body"),
    (spoil("requests", 3, "[" * 100_000), r"requests.jsonl.gz, line 3: it is no line of requests"),
    (spoil("items", 2, '{"item": {"x": 1}, "b64": ""}'), r"items.jsonl.gz, line 2: item.x"),
    (spoil("items", 1, '{"item": {"x": {"data": {"dtype": "int3"}, "field": {}}}, "b64": ""}'), r"line 1: item.x.data"),
    (
        spoil("items", 1, json.dumps({"item": {"x": {"data": 1, "field": {"kind": "ring"}}}, "b64": ""})),
        r"line 1: item.x.field",
    ),
    (
        spoil(
            "items",
            1,
            json.dumps({"item": {"x": GRID | {"data": {"dtype": "int64", "shape": [2], "hex": "00"}}}, "b64": ""}),
        ),
        r"line 1: item.x.data.hex has 1 bytes",
    ),
    (
        spoil(
            "items",
            1,
            json.dumps({"item": {"x": GRID | {"data": {"dtype": "int8", "shape": [1], "hex": "zz"}}}, "b64": ""}),
        ),
        r"line 1: item.x.data.hex: not hexadecimal",
    ),
    (
        spoil("extracts", 1, json.dumps(EXTRACTS[0] | {"mm_kwargs": {"image": [{"g": 1}, None]}})),
        r"line 1: mm_kwargs.image\[0\]",
    ),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGED)
def test_damage_is_told_with_file_and_line(tmp_path: Path, damage: Callable[[Path], object], said: str):
    damage(write(tmp_path))
    with pytest.raises(InputError, match=said) as caught:
        replay_wire(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_blob_with_a_pickle_in_it_is_refused_and_not_loaded(tmp_path: Path):
    spec = {
        "pixel_values": {"data": msgspec.msgpack.Ext(2, b"cos\nsystem\n"), "field": ["batched", {"keep_on_cpu": True}]}
    }
    blob = base64.b64encode(msgspec.msgpack.encode(spec)).decode()
    folder = write(tmp_path, items=[ITEMS[0] | {"b64": blob}])
    with pytest.raises(
        PickleRefusedError, match=r"items\.jsonl\.gz, line 1: b64: field 'pixel_values': .* pickles are never loaded"
    ):
        replay_wire(folder)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path):
    shutil.rmtree(tmp_path)
    with pytest.raises(InputError, match=r"META.json: it cannot be read"):
        replay_wire(tmp_path)
