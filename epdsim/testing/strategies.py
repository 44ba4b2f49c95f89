"""Hypothesis strategies for cases of the protocol: prompts to render, requests to check, items to strip."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from epdsim.sut.cases import CaseField, CaseItem, CheckCase, RenderCase, StripCase

MODALITIES: Sequence[str] = ("image", "audio", "video")
STATES: Sequence[str] = ("payload", "metadata", "neither", "both")
FIELD_NAMES: Sequence[str] = ("pixel_values", "image_grid_thw", "tgt_sizes", "num_crops")

fields: st.SearchStrategy[CaseField] = st.builds(
    CaseField,
    name=st.sampled_from(FIELD_NAMES),
    shape=st.sampled_from([(1,), (2,), (2, 2), (0,), (1, 0)]),
    dtype=st.sampled_from(["float32", "int64", "bfloat16", "uint8", "bool"]),
    keep_on_cpu=st.booleans(),
    kind=st.sampled_from(["batched", "flat", "shared"]),
    num_parts=st.sampled_from([0, 0, 0, 1, 2]),
    fill=st.integers(0, 1),
)
"""One field, of any kind, nested and empty ones among them."""


def masks(length: int) -> st.SearchStrategy[list[int] | None]:
    """No mask, or one with at least one embedding."""
    some = st.lists(st.integers(0, 1), min_size=length, max_size=length).filter(any)
    return st.none() | some


@st.composite
def items(draw: st.DrawFn, *, modalities: Sequence[str] = MODALITIES, number: int = 0) -> CaseItem:
    """One item: its modality, its span, its fields or None for a cache hit."""
    length = draw(st.integers(1, 4))
    some = st.lists(fields, max_size=3, unique_by=lambda one: one.name)
    return CaseItem(
        draw(st.sampled_from(modalities)),
        f"h{number}",
        length,
        draw(st.integers(0, 2)),
        draw(masks(length)),
        draw(st.one_of(some, some, st.none())),
    )


@st.composite
def render_cases(draw: st.DrawFn, *, min_items: int = 1, max_items: int = 5, fails: bool = False) -> RenderCase:
    """A prompt of some items, mixed modalities among them.

    Args:
        draw: Hypothesis's.
        min_items: At least so many.
        max_items: At most so many.
        fails: Whether the model family fails at some question for declared fields.
    """
    count = draw(st.integers(min_items, max_items))
    drawn = [draw(items(number=number)) for number in range(count)]
    if fails:
        # Whether a modality without metadata beside one with some can be rendered is another question.
        kept = CaseField("image_grid_thw", keep_on_cpu=True)
        drawn = [CaseItem(one.modality, one.mm_hash, one.length, one.gap, None, [kept]) for one in drawn]
    declared = draw(st.dictionaries(st.sampled_from(MODALITIES), st.lists(st.sampled_from(FIELD_NAMES), unique=True)))
    by_modality: dict[str, int] = {}
    for one in drawn:
        by_modality[one.modality] = by_modality.get(one.modality, 0) + 1
    order = {}
    if max(by_modality.values()) > 1 and draw(st.booleans()):
        order = {modality: draw(st.permutations(range(size))) for modality, size in by_modality.items()}
    fails_at = draw(st.integers(0, len(by_modality) - 1)) if fails else None
    return RenderCase(drawn, declared, draw(st.integers(0, 2)), order, fails_at)


@st.composite
def check_cases(draw: st.DrawFn, *, max_items: int = 5) -> CheckCase:
    """A request of items in any state, with EC parameters for none, some or all of them, and variants."""
    count = draw(st.integers(1, max_items))
    drawn = [(draw(st.sampled_from(MODALITIES)), f"h{index}", draw(st.sampled_from(STATES))) for index in range(count)]
    hashes = [mm_hash for _, mm_hash, _ in drawn]
    offers = draw(st.none() | st.dictionaries(st.sampled_from([*hashes, "other"]), st.booleans()))
    some = st.lists(st.integers(0, count - 1), unique=True)
    return CheckCase(
        drawn,
        offers,
        draw(st.just([]) | st.permutations(range(count))),
        draw(some),
        draw(st.just([]) | st.lists(st.sampled_from(hashes), unique=True)),
    )


@st.composite
def strip_cases(draw: st.DrawFn, *, max_items: int = 4) -> StripCase:
    """Items, addresses among them, and a number of computed tokens at, one before or one after the end of one of them."""
    drawn: list[CaseItem] = []
    for number in range(draw(st.integers(0, max_items))):
        one = draw(items(number=number))
        if draw(st.integers(0, 3)) == 3:
            one = CaseItem(one.modality, one.mm_hash, one.length, one.gap, None, [CaseField("address", dtype="int64")])
        drawn.append(one)
    ends = [0]
    for one in drawn:
        ends.append(ends[-1] + one.gap + one.length)
    computed = draw(st.sampled_from(ends)) + draw(st.sampled_from([0, 0, -1, 1]))
    return StripCase(drawn, max(0, computed), draw(st.booleans()))
