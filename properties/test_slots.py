"""Families SLOT and PROTO: tables are complete, and what was rendered is what arrives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from epdsim.media import families, family
from epdsim.sut.cases import CaseField, CaseItem, RenderCase
from epdsim.sut.family_cases import FamilyCase, MediaSize
from epdsim.testing.hunt import listed
from properties.explorations import FAILING_FAMILIES, PROMPTS

pytestmark = pytest.mark.xdist_group("slots")

_PIXELS = CaseField("pixel_values", fill=1)
_GRID = CaseField("image_grid_thw", shape=(3,), dtype="int64", keep_on_cpu=True)
_CROPS = CaseField("num_crops", dtype="int64")
_KINDS = (None, [_PIXELS], [_PIXELS, _GRID], [_PIXELS, _GRID, _CROPS])
"""A cache hit, an item without light fields, one with a kept field, one with a declared field too."""


def _shapes() -> Iterator[RenderCase]:
    """Every prompt of up to three items of two modalities, each of any kind."""
    for count in (1, 2, 3):
        for modalities in product(("image", "audio"), repeat=count):
            for kinds in product(_KINDS, repeat=count):
                items = [CaseItem(one, f"h{i}", fields=kinds[i]) for i, one in enumerate(modalities)]
                yield RenderCase(items, {"image": ["num_crops"]})


SHAPES = listed("all prompts of up to three items", _shapes, level="protocol")


def _sizes() -> Iterator[FamilyCase]:
    """Every checkpoint with a small and a large item of each modality that it takes."""
    for name in families():
        takes = family(name).modalities
        pictures = [MediaSize("image", *size) for size in ((224, 224), (1080, 1920)) if "image" in takes]
        clips = [MediaSize("video", 360, 640, count) for count in (4, 32) if "video" in takes]
        sounds = [MediaSize("audio", duration_s=length) for length in (2.0, 25.0) if "audio" in takes]
        yield FamilyCase(name, [*pictures, *clips, *sounds])


SIZES = listed("items of every checkpoint", _sizes, level="media")


@pytest.mark.parametrize("name", ["SLOT-MIN"])
def test_metadata_is_light(epd, name):
    epd(name, SIZES)


@pytest.mark.parametrize("name", ["SLOT-KEYS", "SLOT-LEN", "SLOT-META", "SLOT-NULL", "SLOT-RT", "SLOT-ACCEPT"])
def test_slots(epd, name):
    epd(name, SHAPES, PROMPTS)


@pytest.mark.parametrize("name", ["PROTO-RT", "SLOT-ORDER"])
def test_round_trip_and_order(epd, name):
    epd(name, PROMPTS)


@pytest.mark.parametrize("name", ["SLOT-FALLBACK"])
def test_fallback(epd, name):
    epd(name, FAILING_FAMILIES)
