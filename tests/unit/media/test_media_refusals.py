"""What a family refuses, in one clear sentence."""

import math

import pytest

from epdsim.core.errors import InputError
from epdsim.media import families, family

NO_SIZE = [0, -1, math.nan, math.inf, 1.5, "64", None, True]
NO_NUMBER = [0, -1.0, math.nan, math.inf, "1", None, True]


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize("side", NO_SIZE, ids=str)
def test_sizes_without_pixels(name, side):
    one = family(name)
    for size in ((side, 64), (64, side)):
        with pytest.raises(InputError, match=r"^picture (height|width) .*: must be a whole number of at least 1$"):
            one.image(*size) if "image" in one.modalities else family("llava-1.5-7b").image(*size)
        if "video" in one.modalities:
            with pytest.raises(InputError, match="must be a whole number of at least 1"):
                one.video(2, *size)


@pytest.mark.parametrize("name", [name for name in families() if "video" in family(name).modalities])
def test_clips_without_frames_or_rate(name):
    for frames in NO_SIZE:
        with pytest.raises(InputError, match=r"num_frames .*: must be a whole number of at least 1"):
            family(name).video(frames, 64, 64)
    for rate in NO_NUMBER:
        with pytest.raises(InputError, match=r"fps .*: must be a finite number above 0"):
            family(name).video(2, 64, 64, rate)


@pytest.mark.parametrize("name", [name for name in families() if "audio" in family(name).modalities])
def test_sounds_without_length(name):
    for seconds in NO_NUMBER:
        with pytest.raises(InputError, match=r"duration_s .*: must be a finite number above 0"):
            family(name).audio(seconds)


@pytest.mark.parametrize("name", ["qwen2-audio-7b", "qwen2.5-omni-7b", "gemma-4-e2b"])
def test_sounds_too_short_for_a_token(name):
    with pytest.raises(InputError, match=r"^sound of 0.009 s: it is too short to give a token$"):
        family(name).audio(0.009)


@pytest.mark.parametrize("name", [name for name in families() if name.startswith("qwen") and "audio-" not in name])
def test_aspect_ratio(name):
    family(name).image(10, 2000)
    with pytest.raises(InputError, match=r"^picture of 10 x 2001 pixels: its aspect ratio is over 200$"):
        family(name).image(10, 2001)
    with pytest.raises(InputError, match="aspect ratio"):
        family(name).video(2, 3, 2001)


def test_a_side_that_vanishes():
    with pytest.raises(InputError, match="its shorter side vanishes when it is shrunk"):
        family("pixtral-12b", mistral_format=False).image(1, 2000)
    assert family("pixtral-12b").image(1, 2000).num_embeds == 64


def test_one_frame():
    assert family("qwen2-vl-7b").video(1, 280, 280).num_tokens == 100
    with pytest.raises(InputError, match="clip of 1 frame: qwen3-vl-8b needs at least 2"):
        family("qwen3-vl-8b").video(1, 280, 280)


@pytest.mark.parametrize(
    ("name", "modality", "arguments"),
    [
        ("gemma-4-31b", "audio", (1.0,)),
        ("qwen3-vl-8b", "audio", (1.0,)),
        ("pixtral-12b", "video", (2, 64, 64)),
        ("whisper-small", "image", (64, 64)),
        ("qwen2-audio-7b", "video", (2, 64, 64)),
    ],
)
def test_a_modality_that_the_model_lacks(name, modality, arguments):
    with pytest.raises(InputError, match=f"^{modality} for {name}: the model does not take it; it takes "):
        getattr(family(name), modality)(*arguments)


def test_size_for_tokens_of_a_model_without_pictures():
    with pytest.raises(InputError, match="image for whisper-small: the model does not take it; it takes audio"):
        family("whisper-small").image_size_for_tokens(100)
    with pytest.raises(InputError, match="num_tokens 0: must be a whole number of at least 1"):
        family("qwen3-vl-8b").image_size_for_tokens(0)


def test_unknown_names():
    with pytest.raises(InputError, match=r"^model family 'qwen9': no such family; the families are gemma-3-12b, "):
        family("qwen9")
    with pytest.raises(InputError, match=r"^override max_pixel of qwen3-vl-8b: no such constant; it has hidden, "):
        family("qwen3-vl-8b", max_pixel=1)
    with pytest.raises(InputError, match="override name of qwen3-vl-8b: no such constant"):
        family("qwen3-vl-8b", name="other")


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("qwen3-vl-8b", {"hidden": 0}, "hidden 0 of qwen3-vl-8b: must be a whole number of at least 1"),
        ("qwen3-vl-8b", {"hidden": True}, "hidden True of qwen3-vl-8b: must be a whole number of at least 1"),
        ("qwen3-vl-8b", {"deepstack_levels": -1}, "deepstack_levels -1 of qwen3-vl-8b: must be .* at least 0"),
        ("qwen3-vl-8b", {"max_pixels": 1e6}, "max_pixels 1000000.0 of qwen3-vl-8b: must be a whole number"),
        ("qwen3-vl-8b", {"max_pixels": 1024}, "min_pixels 65536 of qwen3-vl-8b: is over max_pixels 1024"),
        ("qwen3-vl-8b", {"wire_dtype": "int4"}, "wire_dtype 'int4' of qwen3-vl-8b: must be one of bfloat16, "),
        ("qwen3-vl-8b", {"embed_dtype": "uint8"}, "embed_dtype 'uint8' of qwen3-vl-8b: must be one of "),
        ("gemma-4-31b", {"max_soft_tokens": 300}, "max_soft_tokens 300 of gemma-4-31b: must be one of 70, 140, "),
        ("internvl3-8b", {"use_thumbnail": 1}, "use_thumbnail 1 of internvl3-8b: must be true or false"),
        ("internvl3-8b", {"min_tiles": 13}, "min_tiles 13 of internvl3-8b: is over max_tiles 12"),
    ],
)
def test_overrides_that_cannot_be(name, override, message):
    with pytest.raises(InputError, match=message):
        family(name, **override)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("qwen3-vl-8b", lambda one: one.video(10**9, 280, 420)),
        ("internvl3-8b", lambda one: one.image(10**9, 420)),
        ("qwen2.5-omni-3b", lambda one: one.audio(1e29)),
    ],
)
def test_sizes_beyond_all_measure_are_refused_before_memory_is_taken(name, ask):
    with pytest.raises(InputError, match="must be at most 1,000,000"):
        ask(family(name))
