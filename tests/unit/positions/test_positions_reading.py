"""From features to spans; what a strip leaves; the known defects as switches."""

import struct

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import (
    BatchedKind,
    Field,
    MediaFeature,
    MediaItem,
    PlaceholderRange,
    SharedKind,
    TensorHandle,
)
from epdsim.core.positions import (
    HUNYUAN_VL,
    MINICPM_V_4_7,
    ONE_D,
    QWEN2_5_OMNI,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_OMNI,
    VLLM_0_32,
    MissingFieldError,
    lay_out,
    position_schemes,
    spans_from_features,
)
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.strip import READS_FIELDS, strip_covered

VLLM = IDEAL.replacing("vllm-0.32", VLLM_0_32)


def numbers(code, *values, shape=None, kind=None):
    dtype = {"q": "int64", "f": "float32", "?": "bool"}[code]
    raw = struct.pack(f"<{len(values)}{code}", *values)
    return Field(
        TensorHandle(dtype, (len(values),) if shape is None else shape, raw), kind or BatchedKind(keep_on_cpu=True)
    )


PIXELS = Field(TensorHandle("bfloat16", (64, 1176)), BatchedKind())


def image(offset, grid, *, length=None, mask=None, **extra):
    tokens = grid[0] * grid[1] * grid[2] // 4 if length is None else length
    fields = {"pixel_values": PIXELS, "image_grid_thw": numbers("q", *grid), **extra}
    return MediaFeature("image", f"i{offset}", PlaceholderRange(offset, tokens, mask), MediaItem(fields))


def video(offset, grid, seconds=1.0, *, mask=None, **extra):
    fields = {"pixel_values_videos": PIXELS, "video_grid_thw": numbers("q", *grid), **extra}
    if seconds is not None:
        fields["second_per_grid_ts"] = numbers("f", seconds, shape=())
    length = grid[0] * grid[1] * grid[2] // 4 if mask is None else len(mask)
    return MediaFeature("video", f"v{offset}", PlaceholderRange(offset, length, mask), MediaItem(fields))


def canvas(offset, *, keep_sizes):
    sizes = numbers("q", 2, 4, 4, 2, 4, 2, shape=(3, 2), kind=BatchedKind(keep_on_cpu=keep_sizes))
    mask = bytes(bit == "#" for bit in "..##..##..##.")
    item = MediaItem({"pixel_values": PIXELS, "tgt_sizes": sizes})
    return MediaFeature("image", "canvas", PlaceholderRange(offset, len(mask), mask), item)


def strip(scheme, features, dialect):
    """Every item covered."""
    kinds = {"uses_mrope": scheme.uses_mrope, "uses_xdrope": scheme.uses_xdrope}
    return strip_covered(features, features[-1].position.end, **kinds, dialect=dialect)


def test_fields_become_numbers_in_order_of_offset():
    spans = spans_from_features(QWEN2_5_VL, [video(9, (2, 4, 6), 0.1), image(2, (1, 4, 4))])
    assert [span.modality for span in spans] == ["image", "video"]
    assert [span.grid for span in spans] == [(1, 4, 4), (2, 4, 6)]
    assert spans[1].seconds_per_grid == struct.unpack("<f", struct.pack("<f", 0.1))[0], "the float32 that travelled"


def test_nested_fields_and_plain_numbers_are_read():
    grid = Field((1, (4, 4)), BatchedKind(keep_on_cpu=True))
    feature = MediaFeature("image", "x", PlaceholderRange(0, 4), MediaItem({"image_grid_thw": grid}))
    assert spans_from_features(QWEN2_VL, [feature])[0].grid == (1, 4, 4)


def test_one_dimension_reads_nothing():
    assert spans_from_features(ONE_D, [MediaFeature("audio", "x", PlaceholderRange(0, 4))]) == ()


@pytest.mark.parametrize(
    ("features", "names"),
    [
        (
            [MediaFeature("image", "abc", PlaceholderRange(7, 4))],
            ("image 'abc' at token 7", "no data at all", "image_grid_thw"),
        ),
        ([MediaFeature("image", "abc", PlaceholderRange(7, 4), MediaItem({}))], ("only \\[\\]", "image_grid_thw")),
        ([video(3, (1, 4, 4), None)], ("video 'v3'", "second_per_grid_ts")),
        (
            [
                MediaFeature(
                    "image", "a", PlaceholderRange(7, 4), MediaItem({"image_grid_thw": Field(None, BatchedKind())})
                )
            ],
            ("image_grid_thw",),
        ),
    ],
)
def test_a_stripped_field_is_named(features, names):
    with pytest.raises(MissingFieldError) as error:
        spans_from_features(QWEN2_5_VL, features)
    for name in names:
        assert name.replace("\\", "") in str(error.value)


@pytest.mark.parametrize(
    ("scheme", "feature", "says"),
    [
        (QWEN2_VL, MediaFeature("audio", "x", PlaceholderRange(0, 4)), "takes only image, video"),
        (HUNYUAN_VL, video(0, (1, 4, 4)), "takes only image"),
        (QWEN2_VL, image(0, (1, 4, 4), image_grid_thw=numbers("q", 4, 4)), "must be three numbers of at least 1"),
        (QWEN2_VL, image(0, (1, 4, 4), image_grid_thw=numbers("q", 1, 0, 4)), "must be three numbers of at least 1"),
        (QWEN2_5_VL, video(0, (1, 4, 4), float("nan")), "must be one number of seconds"),
        (QWEN2_5_VL, video(0, (1, 4, 4), -1.0), "must be one number of seconds"),
        (MINICPM_V_4_7, image(0, (1, 4, 4), tgt_sizes=numbers("q", 4, 4, 4)), "must be pairs of rows and columns"),
        (MINICPM_V_4_7, image(0, (1, 4, 4), tgt_sizes=numbers("q")), "must be pairs of rows and columns"),
    ],
)
def test_what_cannot_be_read_is_refused(scheme, feature, says):
    with pytest.raises(InputError, match=says):
        spans_from_features(scheme, [feature])


def sound_and_clip(offset, clip_mask, sound_mask):
    flag = numbers("?", True, shape=(), kind=SharedKind(1, keep_on_cpu=True))
    clip = video(offset, (1, 4, 4), mask=clip_mask, use_audio_in_video=flag)
    position = PlaceholderRange(offset, len(sound_mask), sound_mask)
    return [MediaFeature("audio", "s", position, MediaItem({})), clip]


def test_a_clip_takes_in_the_sound_of_its_range():
    lone = MediaFeature("audio", "lone", PlaceholderRange(20, 3), MediaItem({}))
    features = [*sound_and_clip(1, b"\0\1\1\1\1\0\0\0", b"\0\0\0\0\0\1\1\0"), lone]
    spans = spans_from_features(QWEN3_OMNI, features)
    assert [span.modality for span in spans] == ["video", "audio"]
    assert spans[0].audio_embed == b"\0\0\0\0\0\1\1\0"
    assert spans[1].position.offset == 20


def test_a_clip_that_carries_sound_needs_it():
    with pytest.raises(InputError, match="carries its own sound: no masked audio item has the same range"):
        spans_from_features(QWEN2_5_OMNI, sound_and_clip(1, b"\0\1\1\1\1\0\0\0", b"\0\1\1\1\1\0\0\0")[1:])


def test_defect_a2_xd_rope_counted_as_plain():
    """vLLM PR 53456: only schemes called M-RoPE keep metadata, so the second request with a picture dies."""
    defect = IDEAL.replacing("A2", {READS_FIELDS.name: Replacement(lambda uses_mrope, **_: uses_mrope, "PR 53456")})
    features = [image(1, (1, 4, 4), length=6)]
    assert spans_from_features(HUNYUAN_VL, strip(HUNYUAN_VL, features, IDEAL)) == spans_from_features(
        HUNYUAN_VL, features
    )
    with pytest.raises(MissingFieldError, match="image_grid_thw"):
        spans_from_features(HUNYUAN_VL, strip(HUNYUAN_VL, features, defect))
    assert spans_from_features(QWEN2_VL, strip(QWEN2_VL, [image(1, (1, 4, 4))], defect))


def test_defect_a5_slice_sizes_not_kept():
    """MiniCPM-V before its slice sizes were flagged: a covered picture silently gets 1-D positions."""

    def positions_after_strip(feature, dialect):
        spans = spans_from_features(MINICPM_V_4_7, strip(MINICPM_V_4_7, [feature], dialect), dialect)
        return lay_out(MINICPM_V_4_7, 20, spans).columns()

    first = lay_out(MINICPM_V_4_7, 20, spans_from_features(MINICPM_V_4_7, [canvas(1, keep_sizes=False)])).columns()
    assert positions_after_strip(canvas(1, keep_sizes=True), VLLM) == first, "the fix in vLLM 0.32 is the flag"
    assert positions_after_strip(canvas(1, keep_sizes=False), VLLM) == (list(range(20)),) * 3
    with pytest.raises(MissingFieldError, match="tgt_sizes"):
        positions_after_strip(canvas(1, keep_sizes=False), IDEAL)


def test_which_schemes_need_their_fields_after_a_strip():
    for scheme in position_schemes():
        needs = IDEAL[READS_FIELDS](uses_mrope=scheme.uses_mrope, uses_xdrope=scheme.uses_xdrope)
        assert needs == any(scheme.fields.values()), scheme.name


def test_vllm_assumes_what_is_not_there():
    clip = video(0, (1, 4, 4), None)
    assert spans_from_features(QWEN2_5_VL, [clip], VLLM)[0].seconds_per_grid == 1.0
    assert spans_from_features(QWEN3_OMNI, [clip], VLLM)[0].seconds_per_grid == 2.0
    with pytest.raises(MissingFieldError, match="video_grid_thw"):
        spans_from_features(QWEN2_5_VL, [MediaFeature("video", "v", PlaceholderRange(0, 4))], VLLM)
