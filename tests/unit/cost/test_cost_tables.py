"""Tables of steps and encoder runs: reading, interpolation, and fits."""

from __future__ import annotations

import numpy as np
import pytest

from epdsim.core.errors import InputError
from epdsim.cost import LinearEncode, LinearLm, StepLoad, TableEncode, TableLm, chunk_pairs, fit_linear
from epdsim.cost.curve import Curve, lower_hull, rising
from epdsim.cost.encode import fit_linear_encode
from epdsim.cost.lm_table import row_load
from epdsim.cost.nnls import relative_nnls
from epdsim.cost.tables import EncodeRow, LmRow, Selection, read_encode_rows, read_lm_rows

TRUE = LinearLm(
    fixed_ms=4.0, prefill_token_ms=0.02, pair_ms=1e-6, decode_request_ms=0.02, context_token_ms=5e-5
)  # fmt: skip


def rows_of(cost):
    rows = [LmRow("prefill", 1, n, 0.0) for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192)]
    rows += [LmRow("decode", b, c, 0.0) for b in (1, 2, 8, 32, 128) for c in (512, 2048, 8192)]
    return [row._replace(step_ms=cost.step_ms(row_load(row))) for row in rows]


def test_fit_finds_the_coefficients_that_made_the_rows():
    fitted = fit_linear(rows_of(TRUE))
    for name in LinearLm.__slots__:
        assert getattr(fitted, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


def test_fit_holds_coefficients_at_zero_or_above():
    rows = [LmRow("prefill", 1, n, 10.0 - n / 1000) for n in (100, 1000, 2000)]
    fitted = fit_linear(rows)
    assert fitted.prefill_token_ms == 0.0
    assert fitted.fixed_ms > 8.5


def test_least_squares_beats_every_small_change():
    """A solution of the constrained problem cannot be improved by moving along a coordinate."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        features, targets = rng.uniform(0, 3, (30, 4)), rng.uniform(0.5, 9, 30)
        found = relative_nnls(features, targets)

        def error(x, features=features, targets=targets):
            return float(np.sum((features @ x / targets - 1) ** 2))

        assert (found >= 0).all()
        for i in range(4):
            for step in (1e-4, -1e-4):
                moved = found.copy()
                moved[i] = max(moved[i] + step, 0.0)
                assert error(moved) >= error(found) - 1e-9


def test_table_reproduces_rising_rows():
    rows = rows_of(TRUE)
    table = TableLm(rows)
    for row in rows:
        assert table.step_ms(row_load(row)) == pytest.approx(row.step_ms, rel=1e-9)


def test_table_of_a_linear_cost_is_linear_between_and_beyond_its_rows():
    table = TableLm(rows_of(TRUE))
    for load in (
        StepLoad(700, chunk_pairs(0, 700)),
        StepLoad(512, chunk_pairs(3000, 512)),
        StepLoad(20_000, chunk_pairs(0, 20_000)),
        StepLoad(0, 0, 20, 50_000),
        StepLoad(0, 0, 400, 5_000_000),
        StepLoad(1000, chunk_pairs(500, 1000), 30, 60_000),
    ):
        assert table.step_ms(load) == pytest.approx(TRUE.step_ms(load), rel=0.02)


def test_one_decode_request_does_not_shorten_a_prefill_step():
    rows = [LmRow("prefill", 1, n, 7.0 + n / 100) for n in (64, 512, 2048)] + [LmRow("decode", 1, 512, 5.0)]
    table = TableLm(rows)
    prompt = StepLoad(512, chunk_pairs(0, 512))
    assert table.step_ms(prompt._replace(decode_requests=1)) >= table.step_ms(prompt)


def test_a_table_of_one_phase_prices_that_phase_only():
    rows = rows_of(TRUE)
    prompts = TableLm([row for row in rows if row.phase == "prefill"])
    with pytest.raises(InputError, match="no decode rows"):
        prompts.step_ms(StepLoad(0, 0, 1, 100))
    decodes = TableLm([row for row in rows if row.phase == "decode"])
    for requests in (0, 1):
        with pytest.raises(InputError, match="no prefill rows"):
            decodes.step_ms(StepLoad(10, 55, requests, 100))
    assert prompts.step_ms(StepLoad()) == decodes.step_ms(StepLoad()) == 0.0


@pytest.mark.parametrize("rows", [[], [LmRow("prefill", 1, 64, 1.0)]])
def test_a_table_needs_rows(rows):
    with pytest.raises(InputError, match="row"):
        TableLm(rows)


def test_falling_values_meet_in_the_middle():
    assert rising([(1, 5.0), (2, 3.0), (3, 4.0), (4, 9.0)]) == [(1, 4.0), (2, 4.0), (3, 4.5), (4, 9.0)]


def test_hull_is_convex_and_below():
    points = [(0, 1.0), (1, 4.0), (2, 2.0), (4, 5.0), (5, 9.0)]
    hull = lower_hull(points)
    assert hull == [(0, 1.0), (2, 2.0), (4, 5.0), (5, 9.0)]
    curve = Curve(hull)
    assert all(curve.at(x) <= y for x, y in points)


ENCODE = LinearEncode(fixed_ms=1.0, patch_ms=3e-3, pair_ms=4e-7, item_ms=0.0)


def encode_rows(cost=ENCODE):
    shapes = [(patches, images) for patches in (196, 1024, 4096, 16384) for images in (1, 2, 4, 8)]
    return [EncodeRow(patches, images, cost.encode_ms([patches] * images)) for patches, images in shapes]


def test_encode_table_tells_attention_from_the_rest():
    table = TableEncode(encode_rows())
    for items in ([1024], [1024, 4096], [300] * 5, [196, 16384]):
        assert table.encode_ms(items) == pytest.approx(ENCODE.encode_ms(items), rel=1e-6)
    assert table.encode_ms([]) == 0.0


def test_encode_fit_finds_the_coefficients():
    fitted = fit_linear_encode(encode_rows())
    for name in LinearEncode.__slots__:
        assert getattr(fitted, name) == pytest.approx(getattr(ENCODE, name), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("use", [TableEncode, fit_linear_encode])
def test_encode_table_needs_rows(use):
    with pytest.raises(InputError, match="row"):
        use([])


@pytest.fixture
def table_file(tmp_path):
    def write(text):
        path = tmp_path / "steps.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


HEADER = "system,model,tp,phase,batch,context_tokens,step_ms\n"
GOOD = (
    HEADER
    + "h100_sxm,Qwen/Qwen3-VL-8B-Instruct,1,decode,1,512,6.3\nh100_sxm,Qwen/Qwen3-VL-8B-Instruct,2,decode,1,512,4.0\n"
)


def test_lines_of_the_chosen_set_up_are_read(table_file):
    path = table_file(GOOD)
    assert read_lm_rows(path, Selection("qwen3-vl-8b", "h100", 2)) == [LmRow("decode", 1, 512, 4.0)]
    assert read_lm_rows(path, Selection(tp=1)) == [LmRow("decode", 1, 512, 6.3)]


def test_a_table_without_set_up_columns_needs_no_choice(table_file):
    path = table_file("phase,batch,context_tokens,step_ms\nprefill,1,64,3.5\n")
    assert read_lm_rows(path, Selection("anything", "h100", 4)) == [LmRow("prefill", 1, 64, 3.5)]


@pytest.mark.parametrize(
    ("text", "which", "message"),
    [
        (GOOD, Selection(), "2 set-ups"),
        (GOOD, Selection(tp=8), "no line for tp 8"),
        ("phase,batch\n", Selection(), "no column context_tokens, step_ms"),
        ("", Selection(), "no column"),
        (HEADER, Selection(), "no line"),
        (HEADER + "h100,m,1,both,1,64,3\n", Selection(), "prefill or decode"),
        (HEADER + "h100,m,1,decode,1,64,nan\n", Selection(), r"steps.csv:2: step_ms 'nan'"),
        (HEADER + "h100,m,1,decode,1,64,-3\n", Selection(), "step_ms '-3'"),
        (HEADER + "h100,m,1,decode,1.5,64,3\n", Selection(), "whole number"),
        (HEADER + "h100,m,1,decode,0,64,3\n", Selection(), "batch '0'"),
        (HEADER + "h100,m,1,decode,1,64", Selection(), "step_ms None"),
    ],
)
def test_bad_tables_are_refused_with_the_place(table_file, text, which, message):
    with pytest.raises(InputError, match=message):
        read_lm_rows(table_file(text), which)


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_encode_rows(tmp_path / "absent.csv")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="cannot be read"):
        read_encode_rows(binary)
