"""Positions against `get_rope_index` of transformers on random layouts, and the recorded answers against it.

The method is called on a model that has its configuration and no weights. A layout is text, pictures and clips in random order and
number: at the start, at the end, back to back. Two neighbours of one modality have at least one token between them, as the markers
around every real one ensure; the method tells neighbours apart by nothing else.
"""

import inspect
import json
import random
import types
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers", reason="the extra `oracle` is not installed")

import torch  # noqa: E402
import transformers  # noqa: E402

from epdsim.core.items import PlaceholderRange  # noqa: E402
from epdsim.core.positions import (  # noqa: E402
    HUNYUAN_VL,
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
    TIME_INDEX,
    TRANSFORMERS_5,
    MediaSpan,
    lay_out,
    position_scheme,
)
from epdsim.core.rules import IDEAL  # noqa: E402

LAYOUTS = 1000
TRANSFORMERS = IDEAL.replacing("transformers-5", TRANSFORMERS_5)
ANSWERS = Path(__file__).parents[1] / "known_answers" / "positions.json"
MODELS = {
    QWEN2_VL.name: ("qwen2_vl", "Qwen2VLModel"),
    QWEN2_5_VL.name: ("qwen2_5_vl", "Qwen2_5_VLModel"),
    QWEN3_VL.name: ("qwen3_vl", "Qwen3VLModel"),
    HUNYUAN_VL.name: ("hunyuan_vl", "HunYuanVLModel"),
}


def model_without_weights(scheme):
    package, name = MODELS[scheme.name]
    module = __import__(f"transformers.models.{package}.modeling_{package}", fromlist=[name])
    cls = getattr(module, name)
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    vision = types.SimpleNamespace(
        spatial_merge_size=scheme.spatial_merge_size, tokens_per_second=scheme.tokens_per_second
    )
    text = types.SimpleNamespace(rope_parameters={"mrope_section": [16] * scheme.num_dims})
    model.config = types.SimpleNamespace(vision_config=vision, text_config=text)
    assert "mm_token_type_ids" in inspect.signature(model.get_rope_index).parameters, (
        f"transformers {transformers.__version__} is too old: get_rope_index must take mm_token_type_ids"
    )
    return model


def answer(model, num_tokens, spans):
    """Columns and delta as transformers gives them."""
    kinds = torch.zeros((1, num_tokens), dtype=torch.int)
    for span in spans:
        for start, length in span.embed_runs():
            kinds[0, start : start + length] = {"image": 1, "video": 2}[span.modality]

    def tensors(modality):
        grids = [span.grid for span in spans if span.modality == modality]
        return torch.tensor(grids) if grids else None

    clips = [span.seconds_per_grid for span in spans if span.modality == "video"]
    ids, delta = model.get_rope_index(
        input_ids=torch.zeros((1, num_tokens), dtype=torch.long),
        mm_token_type_ids=kinds,
        image_grid_thw=tensors("image"),
        video_grid_thw=tensors("video"),
        second_per_grid_ts=torch.tensor(clips, dtype=torch.float32) if clips else None,
    )
    return tuple(ids[:, 0].tolist()), int(delta)


def random_span(scheme, rng, offset):
    modality = "image" if scheme is HUNYUAN_VL else rng.choice(["image", "video"])
    steps = rng.choice([1, 2, rng.randint(1, 12)]) if modality == "video" else 1
    rows, columns = rng.randint(1, 9), rng.randint(1, 9)
    grid = (steps, 2 * rows, 2 * columns)
    if scheme is HUNYUAN_VL:
        length = rows * (columns + 1) + rng.choice([0, 2])
        return MediaSpan(modality, PlaceholderRange(offset, length), grid)
    if scheme is QWEN3_VL and modality == "video":
        frames = [b"\0" * rng.randint(1, 8) + b"\1" * (rows * columns) for _ in range(steps)]
        mask = b"".join(frames) + b"\0" * rng.randint(0, 1)
        return MediaSpan(modality, PlaceholderRange(offset, len(mask), mask), grid)
    seconds = rng.choice([1.0, 0.5, 2.0 / rng.randint(1, 60), 3 * rng.random()]) if modality == "video" else 1.0
    seconds = torch.tensor(seconds, dtype=torch.float32).item()
    return MediaSpan(modality, PlaceholderRange(offset, steps * rows * columns), grid, seconds)


def random_layout(scheme, rng):
    spans, end = [], rng.choice([0, 0, 1, rng.randint(2, 60)])
    for _ in range(rng.choice([0, 1, 2, 3, rng.randint(4, 8)])):
        span = random_span(scheme, rng, end)
        if spans and spans[-1].modality == span.modality and spans[-1].position.end == end:
            end += rng.randint(1, 2)
            span = replace(span, position=replace(span.position, offset=end))
        spans.append(span)
        end = span.position.end + rng.choice([0, 0, 2, rng.randint(1, 60)])
    return max(end, 1), spans


def is_spatial(scheme, span):
    """Whether a span takes no more temporal positions than rows or columns, and no rounding decides on one."""
    if scheme in {QWEN3_VL, HUNYUAN_VL} or span.modality == "image":
        return True
    times = list(range(span.grid[0]))
    if scheme.tokens_per_second is not None:
        arguments = (span.grid[0], span.seconds_per_grid, scheme.tokens_per_second)
        times = TRANSFORMERS[TIME_INDEX](*arguments)
        if times != IDEAL[TIME_INDEX](*arguments):
            return False
    return times[-1] + 1 <= max(span.grid[1:]) // scheme.spatial_merge_size


@pytest.mark.parametrize("scheme", [QWEN2_VL, QWEN2_5_VL, QWEN3_VL, HUNYUAN_VL], ids=lambda scheme: scheme.name)
def test_positions_equal_get_rope_index(scheme):
    model, rng = model_without_weights(scheme), random.Random(scheme.name)
    seen = dict.fromkeys(
        ["text only", "starts with media", "ends with media", "back to back", "picture and clip", "rules agree"], 0
    )
    for number in range(LAYOUTS):
        num_tokens, spans = random_layout(scheme, rng)
        expected = answer(model, num_tokens, spans)
        layout = lay_out(scheme, num_tokens, spans, TRANSFORMERS)
        assert (layout.columns(), layout.decode_delta) == expected, f"layout {number}: {num_tokens} tokens, {spans}"
        agree = all(is_spatial(scheme, span) for span in spans)
        if agree:
            layout = lay_out(scheme, num_tokens, spans)
            assert (layout.columns(), layout.decode_delta) == expected, f"layout {number}: {num_tokens} tokens, {spans}"
        places = [span.position for span in spans]
        seen["text only"] += not spans
        seen["starts with media"] += any(place.offset == 0 for place in places)
        seen["ends with media"] += any(place.end == num_tokens for place in places)
        seen["back to back"] += any(left.end == right.offset for left, right in pairwise(places))
        seen["picture and clip"] += len({span.modality for span in spans}) > 1
        seen["rules agree"] += agree
    if scheme is HUNYUAN_VL:
        del seen["picture and clip"], seen["back to back"]
    assert min(seen.values()) >= LAYOUTS // 20, seen


def test_recorded_answers_are_what_transformers_gives():
    recorded = json.loads(ANSWERS.read_text())["cases"]
    for name, cases in groupby(recorded, key=lambda case: case["scheme"]):
        model = model_without_weights(position_scheme(name))
        for case in cases:
            spans = [
                MediaSpan(
                    one["modality"],
                    PlaceholderRange(one["offset"], len(one["mask"]), bytes(map(int, one["mask"]))),
                    tuple(one["grid"]),
                    one["seconds_per_grid"],
                )
                for one in case["spans"]
            ]
            assert answer(model, case["num_tokens"], spans) == (tuple(case["positions"]), case["decode_delta"])
