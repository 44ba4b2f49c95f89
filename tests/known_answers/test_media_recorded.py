"""What families render against recordings of the real processors: placeholder, mask, and every field with its kind."""

import json
from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest

from epdsim.core.items import FlatKind, TensorHandle
from epdsim.media import family

CASES = json.loads((Path(__file__).parent / "media-recorded.json").read_text())["cases"]
FAMILIES = sorted({case["family"] for case in CASES})


def expanded(runs):
    return None if runs is None else b"".join(bytes([bit]) * run for run, bit in zip(runs, cycle((0, 1)), strict=False))


def nested_tuple(value):
    return tuple(nested_tuple(one) for one in value) if isinstance(value, list) else value


def told(one):
    """A field in the words of the recording; what the recording leaves out is left out."""
    kind, data = one.kind, one.data
    words = {"kind": type(kind).__name__.removesuffix("Kind").lower(), "keep_on_cpu": kind.keep_on_cpu}
    if isinstance(data, TensorHandle):
        words |= {"dtype": data.dtype, "shape": list(data.shape)}
        if data.source is not None:
            words["values"] = data.flat_values()
    else:
        words["values"] = list(data)
    if isinstance(kind, FlatKind):
        words |= {"slices": kind.slices, "dim": kind.dim}
    return words


@pytest.mark.parametrize("name", FAMILIES)
def test_recorded(name):
    for case in (case for case in CASES if case["family"] == name):
        media = getattr(family(name, **case["overrides"]), case["modality"])(*case["args"])
        assert (media.num_tokens, media.is_embed) == (case["length"], expanded(case["mask_runs"])), case["args"]
        assert media.num_embeds == (case["length"] if media.is_embed is None else media.is_embed.count(1))
        assert set(media.item.fields) == set(case["fields"])
        for field_name, recorded in case["fields"].items():
            ours = told(media.item.fields[field_name])
            theirs = recorded | ({"slices": nested_tuple(recorded["slices"])} if "slices" in recorded else {})
            if field_name == "second_per_grid_ts":
                # The release casts it to the model's dtype; the family keeps the processor's.
                assert (theirs.pop("dtype"), ours.pop("dtype")) == ("bfloat16", "float32")
                assert theirs.pop("values") == pytest.approx(ours.pop("values"), rel=2**-8)
            assert ours == theirs, (case["args"], field_name)


def test_the_recording_covers_every_family():
    """263 cases: thirteen kinds of model, and clips and sounds where they take them."""
    assert len(CASES) == 263
    modalities = Counter(case["modality"] for case in CASES)
    assert modalities == {"image": 175, "video": 39, "audio": 49}
    assert len(FAMILIES) == 13
