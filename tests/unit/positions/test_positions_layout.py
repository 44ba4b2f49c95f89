"""Layouts worked out by hand or published, and the refusals."""

from dataclasses import replace

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import PlaceholderRange
from epdsim.core.positions import (
    ADVANCE,
    HUNYUAN_VL,
    MINICPM_V_4_7,
    ONE_D,
    QWEN2_5_OMNI,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_OMNI,
    QWEN3_VL,
    TRANSFORMERS_5,
    MediaSpan,
    decode_delta,
    lay_out,
    position_scheme,
    position_schemes,
    positions,
)
from epdsim.core.rules import IDEAL

TRANSFORMERS = IDEAL.replacing("transformers-5", TRANSFORMERS_5)


def grid_span(offset, grid, modality="image", **fields):
    steps, rows, columns = grid
    return MediaSpan(modality, PlaceholderRange(offset, steps * rows * columns // 4), grid, **fields)


def masked(offset, bits):
    return PlaceholderRange(offset, len(bits), bytes(bit == "#" for bit in bits))


def test_the_example_of_the_qwen2_vl_documentation():
    # 3 temporal patches of 2 x 2 tokens, then 5 tokens of text (transformers 5.0, Qwen2-VL get_rope_index)
    columns = positions(QWEN2_VL, 17, [grid_span(0, (3, 4, 4), "video")])
    assert columns == (
        [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7],
        [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 3, 4, 5, 6, 7],
        [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 3, 4, 5, 6, 7],
    )


def test_the_example_of_the_qwen2_5_vl_documentation():
    # 1 frame a second, 2 frames a temporal patch, 25 positions a second (transformers 5.0, Qwen2.5-VL get_rope_index)
    scheme = replace(QWEN2_5_VL, tokens_per_second=25)
    columns = positions(scheme, 17, [grid_span(0, (3, 4, 4), "video", seconds_per_grid=2.0)])
    assert columns[0] == [0, 0, 0, 0, 50, 50, 50, 50, 100, 100, 100, 100, 101, 102, 103, 104, 105]
    assert columns[1] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 101, 102, 103, 104, 105]
    assert columns[2] == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 101, 102, 103, 104, 105]


@pytest.mark.parametrize(("side", "delta"), [(28, -182), (4, -2)])
def test_published_decode_deltas(side, delta):
    # smg PR 2366: 196 placeholders take 14 positions, so generated tokens stand 182 before their index
    tokens = (side // 2) ** 2
    assert decode_delta(QWEN2_VL, tokens + 9, [grid_span(4, (1, side, side))]) == delta


def test_qwen3_vl_frames_stand_still_in_time_and_text_between_them_counts():
    # two frames of 1 x 2 tokens; two tokens of timestamp and a start marker before, an end marker behind each
    columns = positions(QWEN3_VL, 14, [MediaSpan("video", masked(2, "...##....##."), (2, 2, 4))])
    assert columns == (
        [0, 1, 2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 11, 13],
        [0, 1, 2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 11, 13],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    )


def test_qwen3_vl_frames_without_text_between_follow_each_other():
    whole = MediaSpan("video", PlaceholderRange(1, 4), (2, 4, 2))
    assert positions(QWEN3_VL, 6, [whole]) == (
        [0, 1, 1, 3, 3, 5],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 1, 3, 3, 5],
    )


def test_hunyuan_counts_columns_rows_and_pictures_beside_the_index():
    # pictures of 2 x 1 and 1 x 1 tokens: one token closes each row; the first has a marker embedding on both sides
    spans = [
        MediaSpan("image", PlaceholderRange(1, 6), (1, 4, 2)),
        MediaSpan("image", PlaceholderRange(8, 2), (1, 2, 2)),
    ]
    assert positions(HUNYUAN_VL, 11, spans) == (
        list(range(11)),
        [0, 1, 0, 1, 0, 1, 6, 7, 0, 1, 10],
        [0, 1, 0, 0, 1, 1, 6, 7, 0, 0, 10],
        [0, 1, 0, 0, 0, 0, 6, 7, 1, 1, 10],
    )
    assert decode_delta(HUNYUAN_VL, 11, spans) == 0


def test_the_canvas_of_a_thumbnail_and_two_slices():
    # <id> <image> 1x2 </image> <slice> 2x1 </slice> <slice> 2x1 </slice>: a canvas of 2 rows and 2 columns at base 2
    span = MediaSpan("image", masked(1, "..##..##..##."), slice_sizes=((2, 4), (4, 2), (4, 2)))
    assert positions(MINICPM_V_4_7, 16, [span]) == (
        [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 1, 2, 2, 4, 2, 2, 3, 3, 2, 2, 3, 3, 5, 6],
        [0, 1, 1, 2, 3, 4, 2, 2, 2, 2, 3, 3, 3, 3, 5, 6],
    )


def test_the_canvas_breaks_rows_where_a_newline_stands():
    # <image> 1 </image> <slice> 1 </slice> newline <slice> 1 </slice> newline: two rows of one slice each
    span = MediaSpan("image", masked(0, ".#..#...#.."), slice_sizes=((2, 2), (2, 2), (2, 2)))
    assert positions(MINICPM_V_4_7, 12, [span]) == (
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3],
        [0, 0, 2, 0, 0, 0, 0, 1, 1, 1, 0, 3],
        [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 3],
    )


def test_a_clip_with_its_sound_counts_both_from_one_base():
    # start marker, 2 temporal patches of 1 token at 0 and 13, 3 tokens of sound, end marker
    clip, sound = masked(1, ".#...#."), masked(1, "..###..")
    span = MediaSpan("video", clip, (2, 2, 2), 1.0, audio_embed=sound.is_embed)
    assert positions(QWEN3_OMNI, 9, [span])[0] == [0, 1, 2, 2, 3, 4, 15, 16, 17]
    assert positions(QWEN3_OMNI, 9, [span])[1] == [0, 1, 2, 2, 3, 4, 2, 16, 17]
    shared = positions(replace(QWEN2_5_OMNI, tokens_per_second=13.0), 9, [span])
    assert shared[0] == [0, 0, 1, 1, 2, 3, 14, 15, 15]


def test_sound_alone_counts_as_text():
    assert positions(QWEN3_OMNI, 5, [MediaSpan("audio", PlaceholderRange(1, 3))]) == ([0, 1, 2, 3, 4],) * 3


def test_text_after_a_long_clip_takes_used_ids_in_transformers():
    span = grid_span(0, (6, 4, 4), "video")
    ideal, other = lay_out(QWEN2_VL, 26, [span]), lay_out(QWEN2_VL, 26, [span], TRANSFORMERS)
    assert ideal.columns(24, 27) == ([6, 7, 8],) * 3
    assert other.columns(24, 27) == ([2, 3, 6],) * 3, "text from 2, generation past 5"
    assert (ideal.decode_delta, other.decode_delta) == (-18, -20)


def test_time_is_rounded_down_and_transformers_rounds_in_float32():
    seconds = 0.83333331346511840820  # 5/6 in float32: 6 patches on are 4.9999998807907 exactly, and 5 in float32
    scheme = replace(QWEN2_5_VL, tokens_per_second=1.0)
    span = grid_span(0, (7, 2, 2), "video", seconds_per_grid=seconds)
    assert lay_out(scheme, 7, [span]).columns()[0] == [0, 0, 1, 2, 3, 4, 4]
    assert lay_out(scheme, 7, [span], TRANSFORMERS).columns()[0] == [0, 0, 1, 2, 3, 4, 5]


def test_an_empty_prompt_generates_from_zero():
    for scheme in position_schemes():
        layout = lay_out(scheme, 0, [])
        assert layout.columns() == ([],) * scheme.num_dims
        assert layout.columns(0, 3) == ([0, 1, 2],) * scheme.num_dims


def test_text_costs_no_memory():
    layout = lay_out(QWEN2_VL, 10**9, [grid_span(5, (1, 4, 4))])
    assert layout.columns(10**9 - 2) == ([10**9 - 4, 10**9 - 3],) * 3
    assert [type(segment.columns[0]) for segment in layout.segments] == [range, list, range]


def test_one_dimension_ignores_media():
    assert positions(ONE_D, 3, [grid_span(0, (1, 4, 4))]) == ([0, 1, 2],)


def test_schemes_are_found_by_name():
    assert position_scheme("mrope-qwen3-vl") is QWEN3_VL
    with pytest.raises(InputError, match=r"position scheme 'mrope': is not known; the schemes are 1d, mrope-qwen2-vl"):
        position_scheme("mrope")


@pytest.mark.parametrize(
    ("scheme", "span", "says"),
    [
        (
            QWEN2_VL,
            MediaSpan("image", PlaceholderRange(0, 5), (1, 4, 4)),
            r"holds 5 media tokens: its grid \(1, 4, 4\)",
        ),
        (QWEN2_VL, MediaSpan("image", masked(0, "##.##"), (1, 4, 4)), r"holds 2 \+ 2 media tokens"),
        (QWEN2_VL, MediaSpan("image", masked(0, "...."), (1, 4, 4)), r"holds 0 media tokens"),
        (QWEN3_VL, MediaSpan("video", masked(0, "#.###"), (2, 4, 2)), r"holds 1 \+ 3 media .* makes 2 frames of 2"),
        (QWEN3_VL, MediaSpan("video", masked(0, "##.##"), (3, 4, 2)), r"makes 3 frames of 2"),
        (HUNYUAN_VL, MediaSpan("image", PlaceholderRange(0, 5), (1, 4, 2)), r"one piece of 4 or 6"),
        (MINICPM_V_4_7, MediaSpan("image", masked(0, ".#.")), r"with 1 runs .* not 0"),
        (MINICPM_V_4_7, MediaSpan("image", masked(0, "#."), slice_sizes=((2, 2),)), r"marker before the thumbnail"),
        (MINICPM_V_4_7, MediaSpan("image", masked(0, ".###."), slice_sizes=((1, 2),)), r"3 tokens of 1 x 2 patches"),
        (QWEN3_OMNI, MediaSpan("video", masked(0, "##"), (1, 2, 2), audio_embed=b"\0\1"), r"do not share its tokens"),
        (
            QWEN3_OMNI,
            MediaSpan("video", masked(0, "##."), (1, 2, 2), audio_embed=b"\0\0\1"),
            r"makes 1 beside its sound",
        ),
        (
            QWEN2_5_OMNI,
            MediaSpan("video", masked(1, "#.."), (1, 2, 2), audio_embed=b"\0\1\0"),
            r"one start and one end",
        ),
    ],
)
def test_what_does_not_fit_is_refused(scheme, span, says):
    with pytest.raises(InputError, match=says):
        lay_out(scheme, 9, [span])


@pytest.mark.parametrize("offsets", [(0, 3), (-1,), (7,)])
def test_spans_stay_apart_and_inside(offsets):
    with pytest.raises(InputError, match="must lie in the 10 tokens"):
        lay_out(QWEN2_VL, 10, [grid_span(offset, (1, 4, 4)) for offset in offsets])


def test_only_replaced_rules_change():
    assert TRANSFORMERS[ADVANCE]((9, 2, 3)) == 3
    assert IDEAL[ADVANCE]((9, 2, 3)) == 9
