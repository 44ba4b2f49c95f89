"""Positions as transformers gives them, recorded: the comparison that needs no transformers."""

import json
from pathlib import Path

import pytest

from epdsim.core.items import PlaceholderRange
from epdsim.core.positions import TRANSFORMERS_5, MediaSpan, lay_out, position_scheme
from epdsim.core.rules import IDEAL

RECORDED = json.loads((Path(__file__).parent / "positions.json").read_text())
TRANSFORMERS = IDEAL.replacing("transformers-5", TRANSFORMERS_5)


def spans_of(case):
    for one in case["spans"]:
        mask = bytes(map(int, one["mask"]))
        position = PlaceholderRange(one["offset"], len(mask), mask)
        yield MediaSpan(one["modality"], position, tuple(one["grid"]), one["seconds_per_grid"])


@pytest.mark.parametrize("scheme", ["mrope-qwen2-vl", "mrope-qwen2.5-vl", "mrope-qwen3-vl", "xdrope-hunyuan-vl"])
def test_recorded_positions(scheme):
    cases = [case for case in RECORDED["cases"] if case["scheme"] == scheme]
    assert len(cases) == 16
    for case in cases:
        layout = lay_out(position_scheme(scheme), case["num_tokens"], list(spans_of(case)), TRANSFORMERS)
        assert [list(column) for column in layout.columns()] == case["positions"], case
        assert layout.decode_delta == case["decode_delta"]


def test_pictures_alone_need_no_other_dialect():
    cases = [case for case in RECORDED["cases"] if all(one["modality"] == "image" for one in case["spans"])]
    assert len(cases) > 16
    for case in cases:
        layout = lay_out(position_scheme(case["scheme"]), case["num_tokens"], list(spans_of(case)))
        assert [list(column) for column in layout.columns()] == case["positions"]
        assert layout.decode_delta == case["decode_delta"]
