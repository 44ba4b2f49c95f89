"""Hypothesis strategies for positions: prompts of every scheme, and the ways in which they come to be computed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from epdsim.core.positions import HUNYUAN_VL, MINICPM_V_4_7, QWEN2_5_OMNI, QWEN3_VL, PositionScheme, position_schemes
from epdsim.sut.position_cases import PositionCase, PositionItem

_sides = st.integers(1, 4)
_gaps = st.integers(0, 6)


def _grid(*sides: int) -> list[float]:
    return [float(side) for side in sides]


@st.composite
def _pictures(draw: st.DrawFn, scheme: PositionScheme) -> list[PositionItem]:
    rows, columns = draw(_sides), draw(_sides)
    if scheme is MINICPM_V_4_7:
        high, wide, per_row, lines = draw(_sides), draw(_sides), draw(st.integers(1, 3)), draw(st.integers(0, 2))
        cut = b"\0" + b"\1" * (high * wide) + b"\0"
        mask = b"\0\0" + b"\1" * (rows * columns) + b"\0" + b"\0".join([cut * per_row] * lines)
        sizes = _grid(2 * rows, 2 * columns, *[2 * high, 2 * wide] * (per_row * lines))
        return [PositionItem("image", 0, len(mask), list(mask), {"tgt_sizes": sizes})]
    length = rows * (columns + 1) + draw(st.sampled_from([0, 2])) if scheme is HUNYUAN_VL else rows * columns
    return [PositionItem("image", 0, length, None, {"image_grid_thw": _grid(1, 2 * rows, 2 * columns)})]


@st.composite
def _clips(draw: st.DrawFn, scheme: PositionScheme) -> list[PositionItem]:
    """A clip; one that carries its own sound is two items of one range."""
    steps, rows, columns = draw(_sides), draw(_sides), draw(_sides)
    frame, length = b"\1" * (rows * columns), steps * rows * columns
    fields = {"video_grid_thw": _grid(steps, 2 * rows, 2 * columns)}
    if "second_per_grid_ts" in scheme.fields["video"]:
        fields["second_per_grid_ts"] = [draw(st.floats(0, 4, width=32))]
    if "use_audio_in_video" not in scheme.fields["video"]:
        if scheme is not QWEN3_VL:
            return [PositionItem("video", 0, length, None, fields)]
        mask = b"".join(b"\0" * draw(st.integers(1, 3)) + frame + b"\0" for _ in range(steps))
        return [PositionItem("video", 0, len(mask), list(mask), fields)]
    sound = draw(st.integers(0, 6))
    fields["use_audio_in_video"] = [float(sound > 0)]
    if not sound:
        return [PositionItem("video", 0, length, None, fields)]
    mixed = [0, *draw(st.permutations([*frame * steps, *[0] * sound])), 0]
    heard = [0, *(1 - bit for bit in mixed[1:-1]), 0]
    return [PositionItem("video", 0, len(mixed), mixed, fields), PositionItem("audio", 0, len(heard), heard)]


@st.composite
def media_prompts(
    draw: st.DrawFn, schemes: Sequence[PositionScheme] | None = None, min_items: int = 0
) -> tuple[PositionScheme, int, list[PositionItem]]:
    """A scheme, the length of a prompt, and its items.

    Args:
        draw: Hypothesis's.
        schemes: To choose from; all by default.
        min_items: At least so many, where a clip with its sound is one.
    """
    scheme = draw(st.sampled_from(list(schemes or position_schemes())))
    kinds: list[st.SearchStrategy[list[PositionItem]]] = [_pictures(scheme)]
    if "video" in scheme.fields:
        kinds.append(_clips(scheme))
    if "audio" in scheme.fields:
        kinds.append(st.integers(1, 9).map(lambda length: [PositionItem("audio", 0, length)]))
    items: list[PositionItem] = []
    # There a clip with its sound lies between two markers that share an id on each side: one of them is text.
    marker = int(scheme is QWEN2_5_OMNI)
    end = draw(_gaps) + marker
    for parts in draw(st.lists(st.one_of(kinds), min_size=min_items, max_size=4)):
        items += [PositionItem(one.modality, end, one.length, one.is_embed, one.fields) for one in parts]
        end += parts[0].length + draw(_gaps) + marker
    return scheme, end, items


@st.composite
def position_cases(draw: st.DrawFn) -> PositionCase:
    """A prompt cut into chunks, resumed, stripped at, before or after the end of an item, and as turns of a session."""
    scheme, num_tokens, items = draw(media_prompts())
    num_generated = draw(st.integers(0, 5))
    cuts = draw(st.lists(st.integers(0, num_tokens + num_generated), max_size=4))
    ends = [one.offset + one.length for one in items]
    computed = draw(st.sampled_from([*ends, *ends, num_tokens])) + draw(st.sampled_from([0, 0, 1, -1]))
    inside = {place for one in items for place in range(one.offset + 1, one.offset + one.length)}
    turns = draw(
        st.lists(st.sampled_from(sorted({*range(1, num_tokens + 1)} - inside)), max_size=2)
        if num_tokens
        else st.just([])
    )
    return PositionCase(
        scheme.name, num_tokens, items, num_generated, sorted(cuts), max(0, min(computed, num_tokens)), sorted(turns)
    )
