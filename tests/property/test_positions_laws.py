"""Laws that hold for the positions of every prompt: POS-EQ, POS-SUFFIX, and what follows from counting from a base."""

import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.positions import (
    HUNYUAN_VL,
    MINICPM_V_4_7,
    ONE_D,
    QWEN2_5_OMNI,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_OMNI,
    QWEN3_VL,
    TRANSFORMERS_5,
    VLLM_0_32,
    decode_delta,
    lay_out,
    position_schemes,
    positions,
    spans_from_features,
)
from epdsim.core.rules import IDEAL
from epdsim.core.strip import strip_covered
from epdsim.sut.position_cases import position_features
from epdsim.testing.positions import media_prompts

SCHEMES = position_schemes()
MROPE = (QWEN2_VL, QWEN2_5_VL, QWEN3_VL, QWEN2_5_OMNI, QWEN3_OMNI, MINICPM_V_4_7)
DIALECTS = (IDEAL, IDEAL.replacing("transformers", TRANSFORMERS_5), IDEAL.replacing("vllm", VLLM_0_32))
sides = st.integers(1, 4)


def field(code, *values):
    dtype = {"q": "int64", "f": "float32", "?": "bool"}[code]
    return Field(
        TensorHandle(dtype, (len(values),), struct.pack(f"<{len(values)}{code}", *values)),
        BatchedKind(keep_on_cpu=True),
    )


def prompts(schemes=SCHEMES, min_items=0):
    """A scheme, the length of a prompt and its features, with payloads beside the fields that positions read."""
    return media_prompts(schemes, min_items).map(lambda drawn: (drawn[0], drawn[1], position_features(drawn[2])))


def laid(scheme, num_tokens, features, dialect=IDEAL):
    return lay_out(scheme, num_tokens, spans_from_features(scheme, features, dialect), dialect)


def joined(parts, num_dims):
    return tuple([number for part in parts for number in part[dim]] for dim in range(num_dims))


def by_token(columns):
    return list(zip(*columns, strict=True))


@given(prompts(), st.sampled_from(DIALECTS), st.data())
def test_pos_eq_whole_chunked_and_resumed(prompt, dialect, data):
    """However a prompt and what it generates is cut, also with a restart from 0, each token has the same position."""
    scheme, num_tokens, features = prompt
    layout = laid(scheme, num_tokens, features, dialect)
    end = num_tokens + data.draw(st.integers(0, 5), "generated")
    whole = layout.columns(0, end)
    assert [len(column) for column in whole] == [end] * scheme.num_dims
    cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=6), "cuts"))
    parts = [layout.columns(low, high) for low, high in pairwise([0, *cuts, end])]
    assert joined(parts, scheme.num_dims) == whole
    resumed = data.draw(st.integers(0, end), "resumed at")
    again = positions(scheme, num_tokens, spans_from_features(scheme, features), resumed, end, dialect=dialect)
    assert again == tuple(column[resumed:] for column in whole)


@given(prompts(min_items=1), st.sampled_from(DIALECTS), st.data())
def test_pos_suffix_stripping_covered_items_changes_no_position(prompt, dialect, data):
    """Items that lie in the computed tokens lose their payload; the positions of all tokens stay as they were."""
    scheme, num_tokens, features = prompt
    num_computed = data.draw(st.integers(0, num_tokens), "computed")
    kinds = {"uses_mrope": scheme.uses_mrope, "uses_xdrope": scheme.uses_xdrope}
    stripped = strip_covered(features, num_computed, **kinds, dialect=dialect)
    before, after = laid(scheme, num_tokens, features, dialect), laid(scheme, num_tokens, stripped, dialect)
    assert after.columns(num_computed, num_tokens + 3) == before.columns(num_computed, num_tokens + 3)
    assert after == before
    covered = [one for one in stripped if one.position.end <= num_computed]
    full = [one for one in covered if one.data is not None and "pixel_values" in one.data.fields]
    assert not full or num_computed == 0, "and it does strip"


@given(st.sampled_from(SCHEMES), st.integers(0, 50), st.sampled_from(DIALECTS))
def test_text_alone_counts_alike_in_every_dimension(scheme, num_tokens, dialect):
    layout = lay_out(scheme, num_tokens, (), dialect)
    assert layout.columns(0, num_tokens + 4) == (list(range(num_tokens + 4)),) * scheme.num_dims
    assert layout.decode_delta == 0


@given(prompts(), st.sampled_from(DIALECTS))
def test_generation_goes_on_one_past_the_highest_position(prompt, dialect):
    scheme, num_tokens, features = prompt
    assume(num_tokens > 0)
    layout = laid(scheme, num_tokens, features, dialect)
    highest = max(max(column) for column in layout.columns())
    expected = list(range(highest + 1, highest + 5))
    assert layout.columns(num_tokens, num_tokens + 4) == (expected,) * scheme.num_dims
    spans = spans_from_features(scheme, features)
    assert decode_delta(scheme, num_tokens, spans, dialect) == highest + 1 - num_tokens


@given(prompts(schemes=(ONE_D, QWEN2_VL, QWEN3_VL, HUNYUAN_VL)))
def test_no_two_tokens_share_a_position(prompt):
    """Schemes whose grids are not scaled tell every two tokens apart, generated ones included."""
    scheme, num_tokens, features = prompt
    taken = by_token(laid(scheme, num_tokens, features).columns(0, num_tokens + 3))
    assert len(set(taken)) == len(taken)


@given(prompts(schemes=MROPE))
def test_text_never_goes_back(prompt):
    """A text token stands after every token before it in every dimension; of the canvas its opening marker steps back by one."""
    scheme, num_tokens, features = prompt
    taken = by_token(laid(scheme, num_tokens, features).columns(0, num_tokens + 2))
    inside = {token for one in features for token in range(one.position.offset, one.position.end)}
    behind = 0
    shared = {one.position.end for one in features if scheme is QWEN2_5_OMNI}
    for token, place in enumerate(taken):
        if token not in inside:
            assert len(set(place)) == 1
            assert place[0] >= behind - (token in shared)
        behind = max(behind, *(number + 1 for number in place))


@given(prompts(), st.integers(0, 9))
def test_what_is_appended_changes_nothing_before(prompt, more):
    scheme, num_tokens, features = prompt
    longer = laid(scheme, num_tokens + more, features)
    assert longer.columns(0, num_tokens) == laid(scheme, num_tokens, features).columns()
    if features:
        cut = features[-1].position.offset
        fewer = [one for one in features if one.position.offset < cut]
        assert laid(scheme, cut, fewer).columns() == longer.columns(0, cut)


@given(prompts(schemes=tuple(scheme for scheme in MROPE if scheme is not MINICPM_V_4_7)), st.integers(1, 9))
def test_text_in_front_shifts_all_alike(prompt, more):
    """Translation: positions are counted from a base, so text in front moves all of them by its length."""
    scheme, num_tokens, features = prompt
    moved = [replace(one, position=replace(one.position, offset=one.position.offset + more)) for one in features]
    before, after = laid(scheme, num_tokens, features), laid(scheme, num_tokens + more, moved)
    shifted = tuple([number + more for number in column] for column in before.columns(0, num_tokens + 3))
    assert after.columns(more, num_tokens + more + 3) == shifted
    assert after.decode_delta == before.decode_delta


@given(prompts(), st.randoms(use_true_random=False))
def test_the_order_in_which_features_are_listed_does_not_matter(prompt, random):
    scheme, num_tokens, features = prompt
    shuffled = random.sample(features, len(features))
    assert laid(scheme, num_tokens, shuffled) == laid(scheme, num_tokens, features)


@given(st.integers(0, 5), st.tuples(sides, sides, sides), st.integers(0, 5))
def test_a_grid_on_its_side_exchanges_rows_and_columns(offset, grid, behind):
    steps, rows, columns = grid
    length = steps * rows * columns

    def tokens(high, wide):
        grid_field = field("q", steps, 2 * high, 2 * wide)
        item = MediaItem({"video_grid_thw": grid_field})
        feature = MediaFeature("video", "m", PlaceholderRange(offset, length), item)
        return by_token(laid(QWEN2_VL, offset + length + behind, [feature]).columns())

    assert sorted(tokens(rows, columns)) == sorted((time, across, down) for time, down, across in tokens(columns, rows))


@given(prompts(schemes=(QWEN2_VL, QWEN3_VL)))
def test_media_only_ever_save_positions(prompt):
    scheme, num_tokens, features = prompt
    assert laid(scheme, num_tokens, features).decode_delta <= 0


@pytest.mark.parametrize("scheme", [QWEN2_VL, QWEN2_5_VL])
def test_transformers_breaks_two_of_these_laws(scheme):
    """The twin of the laws above: they can fail, and do for a clip that lasts longer than its frames are wide."""
    fields = {"video_grid_thw": field("q", 3, 2, 2), "second_per_grid_ts": field("f", 1.0)}
    feature = MediaFeature("video", "m", PlaceholderRange(0, 3), MediaItem(fields))
    taken = by_token(laid(scheme, 9, [feature], DIALECTS[1]).columns())
    assert taken[3][0] <= taken[2][0], "text goes back"
    assert {place[0] for place in taken[:3]} & {place[0] for place in taken[3:]}, "and takes used ids"
