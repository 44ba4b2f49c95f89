"""Every family against the processors of transformers on 500 random sizes: placeholder masks, field shapes, and who is refused.

Processors are built from explicit arguments and a tokenizer of a few words, without network. A picture or sound goes through the
whole processor, its placeholder is read off the token ids. What transformers calls differently is renamed here; what vLLM adds
(counts, token ids) is compared by `tests/unit/media/test_media_recorded.py` with recordings of the real release.

Mistral's own format of Pixtral is not in transformers; recordings of mistral-common stand in its place.
"""

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers", reason="the extra `oracle` is not installed")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from epdsim.core.errors import InputError  # noqa: E402
from epdsim.media import family  # noqa: E402

SIZES = 500
SAMPLING_RATE = 16_000
QWEN = {"image_token": "<image>", "video_token": "<video>"}
MARKERS = ("vision_bos", "vision_eos", "audio_bos", "audio_eos")
OMNI = QWEN | {"audio_token": "<audio>"} | {f"{name}_token": f"<{name}>" for name in MARKERS}
GEMMA = {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
GEMMA4_FIELDS = {
    "renamed": {"pixel_position_ids": "image_position_ids"},
    "batched": ("pixel_values", "pixel_position_ids"),
}
LLAMA = ("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>")
CHECKPOINT_PIXELS = {"shortest_edge": 3136, "longest_edge": 12_845_056}


def tokenizer(*specials, **named):
    plain = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.add_special_tokens([*specials, *named.values()])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[UNK]", extra_special_tokens=named
    )


@dataclass
class Case:
    """One family and the processor that stands for it.

    Attributes:
        name: Name of the family.
        build: Makes the processor.
        text: The prompt that holds one item.
        embed: Token that takes an embedding.
        longest: Largest side in pixels, or seconds of sound.
        shortest: Smallest side in pixels.
        overrides: Constants of the family.
        renamed: Fields whose names differ, ours to transformers'.
        batched: Fields with a leading dimension of one item in transformers' answer.
        added: Fields that only vLLM has.
    """

    name: str
    build: object
    text: str
    embed: str
    longest: float
    shortest: int = 1
    overrides: dict = field(default_factory=dict)
    renamed: dict = field(default_factory=dict)
    batched: tuple = ()
    added: tuple = ()

    @property
    def family(self):
        return family(self.name, **{"wire_dtype": "float32", **self.overrides})


def qwen(processor, video, patch, pixels):
    def build():
        images = tf.Qwen2VLImageProcessor(size=dict(pixels), patch_size=patch)
        return processor(images, tokenizer(**QWEN), video(patch_size=patch))

    return build


def omni(processor, patch, window_s=30):
    def build():
        sound = tf.WhisperFeatureExtractor(feature_size=128, chunk_length=window_s)
        images = tf.Qwen2VLImageProcessor(size=dict(CHECKPOINT_PIXELS), patch_size=patch)
        return processor(images, tf.Qwen2VLVideoProcessor(patch_size=patch), sound, tokenizer(**OMNI))

    return build


def gemma4(budget):
    def build():
        named = GEMMA | {"audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
        sound, images = tf.Gemma4AudioFeatureExtractor(), tf.Gemma4ImageProcessor(max_soft_tokens=budget)
        return tf.Gemma4Processor(sound, images, tokenizer(**named), tf.Gemma4VideoProcessor())

    return build


def internvl():
    """Tiles of 112 pixels for speed; the count below is of tiles of 448."""
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<ctx>",
        "video_token": "<video>",
    }
    size = {"height": 112, "width": 112}
    images = tf.GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=12)
    return tf.InternVLProcessor(images, tokenizer(**named), tf.InternVLVideoProcessor(), image_seq_length=16)


def llava():
    images = tf.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    arguments = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return tf.LlavaProcessor(images, tokenizer(image_token="<image>"), **arguments)


def pixtral():
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    return tf.PixtralProcessor(tf.PixtralImageProcessor(), words, patch_size=16)


def gemma3():
    images = tf.Gemma3ImageProcessor(size={"height": 896, "width": 896})
    return tf.Gemma3Processor(images, tokenizer("\n\n", **GEMMA), image_seq_length=256)


def llama4():
    """Tiles of 112 pixels for speed; the canvases below are of tiles of 336."""
    images = tf.Llama4ImageProcessor(size={"height": 112, "width": 112})
    return tf.Llama4Processor(images, tokenizer(*LLAMA), patch_size=14, pixel_shuffle_ratio=0.5)


def qwen2_audio(window_s):
    def build():
        words = tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
        return tf.Qwen2AudioProcessor(tf.WhisperFeatureExtractor(feature_size=128, chunk_length=window_s), words)

    return build


QWEN2 = (tf.Qwen2VLProcessor, tf.Qwen2VLVideoProcessor, 14)
QWEN25 = (tf.Qwen2_5_VLProcessor, tf.Qwen2VLVideoProcessor, 14)
QWEN3 = (tf.Qwen3VLProcessor, tf.Qwen3VLVideoProcessor, 16)
QWEN3_PIXELS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
CLASS_PIXELS = {"shortest_edge": 3136, "longest_edge": 1_003_520}
PICTURES = {
    "qwen2-vl": Case("qwen2-vl-7b", qwen(*QWEN2, CHECKPOINT_PIXELS), "<image>", "<image>", 1200),
    "qwen2.5-vl": Case("qwen2.5-vl-7b", qwen(*QWEN25, CHECKPOINT_PIXELS), "<image>", "<image>", 1200),
    "qwen2.5-vl, 1,280 tokens": Case(
        "qwen2.5-vl-7b", qwen(*QWEN25, CLASS_PIXELS), "<image>", "<image>", 2400, overrides={"max_pixels": 1_003_520}
    ),
    "qwen3-vl": Case("qwen3-vl-8b", qwen(*QWEN3, QWEN3_PIXELS), "<image>", "<image>", 1200),
    "qwen2.5-omni": Case("qwen2.5-omni-7b", omni(tf.Qwen2_5OmniProcessor, 14), "<image>", "<image>", 1200),
    "qwen3-omni": Case("qwen3-omni-30b-a3b", omni(tf.Qwen3OmniMoeProcessor, 16), "<image>", "<image>", 1200),
    "gemma-3": Case("gemma-3-27b", gemma3, "<boi>", "<image>", 300, added=("num_patches",)),
    "gemma-4": Case("gemma-4-e4b", gemma4(280), "<image>", "<image>", 1500, **GEMMA4_FIELDS),
    "gemma-4, 70 tokens": Case(
        "gemma-4-31b", gemma4(70), "<image>", "<image>", 3000, overrides={"max_soft_tokens": 70}, **GEMMA4_FIELDS
    ),
    "internvl": Case(
        "internvl3-8b",
        internvl,
        "<ctx>",
        "<ctx>",
        800,
        overrides={"tile": 112},
        renamed={"pixel_values_flat": "pixel_values"},
        added=("image_num_patches", "image_token_id"),
    ),
    "llava-1.5": Case("llava-1.5-7b", llava, "<image>", "<image>", 300, 30, batched=("pixel_values",)),
    "pixtral": Case(
        "pixtral-12b", pixtral, "[IMG]", "[IMG]", 2400, overrides={"mistral_format": False}, batched=("pixel_values",)
    ),
    "llama-4": Case(
        "llama-4-scout",
        llama4,
        "<|image|>",
        "<|patch|>",
        1200,
        overrides={"wire_dtype": "bfloat16", "tile": 112},
        added=("patches_per_image", "aspect_ratios"),
    ),
}
AUDIO = ("<audio>", "<audio>")
SHORT, FULL = 5, 30
SOUNDS = {
    f"{name}, window of {window_s} s": Case(
        f"{name}-7b", build(window_s), *texts, window_s * 1.2, overrides={constant: window_s}
    )
    for name, build, texts, constant in (
        ("qwen2-audio", qwen2_audio, ("<|AUDIO|>", "<|AUDIO|>"), "window_s"),
        ("qwen2.5-omni", partial(omni, tf.Qwen2_5OmniProcessor, 14), AUDIO, "audio_window_s"),
    )
    for window_s in (SHORT, FULL)
} | {
    "qwen3-omni": Case("qwen3-omni-30b-a3b", omni(tf.Qwen3OmniMoeProcessor, 16), *AUDIO, 40),
    "gemma-4": Case("gemma-4-e4b", gemma4(280), *AUDIO, 40),
}
REFUSALS = (ValueError, RuntimeError, ZeroDivisionError, IndexError)


def outcome(case, processor, **media):
    """Mask over the token ids and fields of one item, or None for a refusal."""
    try:
        found = dict(processor(text=[case.text], return_tensors="pt", **media))
    except REFUSALS:
        return None
    embed = processor.tokenizer.convert_tokens_to_ids(case.embed)
    mask = bytes(token == embed for token in found["input_ids"][0].tolist())
    return (mask, found) if any(mask) else None


def ours(layout, *arguments):
    try:
        return layout(*arguments)
    except InputError:
        return None


def mask_of(media):
    return b"\1" * media.num_tokens if media.is_embed is None else media.is_embed


def assert_same_field(case, name, handle, found):
    theirs = found[case.renamed.get(name, name)]
    theirs = theirs[0] if name in case.batched else theirs
    if name.endswith("grid_thw"):
        theirs = theirs[0]
    assert (handle.dtype, handle.shape) == (str(theirs.dtype).removeprefix("torch."), tuple(theirs.shape)), name
    if handle.source is not None:
        assert handle.flat_values() == theirs.flatten().tolist(), name


def random_side(rng, longest, shortest=1):
    return int(shortest * (longest / shortest) ** rng.uniform(0, 1))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Pictures are small: threads would cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", PICTURES.values(), ids=PICTURES)
def test_pictures(case):
    rng, processor, layout = random.Random(case.name), case.build(), case.family.image
    taken = 0
    for _ in range(SIZES):
        height, width = (random_side(rng, case.longest, case.shortest) for _ in "hw")
        theirs = outcome(case, processor, images=[Image.new("RGB", (width, height))])
        media = ours(layout, height, width)
        assert (media is None) == (theirs is None), f"{height} x {width}"
        if media is None:
            continue
        taken += 1
        assert mask_of(media) == theirs[0], f"{height} x {width}"
        for name, one in media.item.fields.items():
            if name not in case.added:
                assert_same_field(case, name, one.data, theirs[1])
    assert taken > SIZES * 0.8


@pytest.mark.parametrize("case", SOUNDS.values(), ids=SOUNDS)
def test_sounds(case):
    """Windows of 5 s for speed, and 50 sounds in the real one."""
    rng, processor, layout = random.Random(case.name), case.build(), case.family.audio
    for _ in range(50 if FULL in case.overrides.values() else SIZES):
        samples = int((case.longest * SAMPLING_RATE) ** rng.uniform(0.4, 1))
        options = {}
        if case.name.startswith("qwen3-omni"):
            samples += -samples % 160  # vLLM pads to whole hops before the processor
        elif case.name.startswith("qwen2.5-omni"):
            options = {"truncation": False}  # as vLLM calls it
        theirs = outcome(case, processor, audio=[np.zeros(samples, np.float32)], **options)
        media = ours(layout, samples / SAMPLING_RATE)
        assert (media is None) == (theirs is None), samples
        if media is None:
            continue
        assert mask_of(media) == theirs[0], samples
        fields, found = {name: one.data for name, one in media.item.fields.items()}, theirs[1]
        if case.name.startswith("gemma"):
            valid = int(found["input_features_mask"].sum())
            assert fields["input_features_padded"].shape == (valid, found["input_features"].shape[-1])
            assert fields["input_features_mask"].shape == (valid,)
            continue
        bins, padded = found["input_features"].shape[1:]
        if case.name.startswith("qwen2-audio"):
            assert fields["input_features"].shape == (bins, padded)
        else:
            valid = int(found["feature_attention_mask"].sum())
            assert fields["input_audio_features"].shape == (bins, valid)
            assert fields["audio_feature_lengths"].flat_values() == [valid]
        assert fields["feature_attention_mask"].shape == (padded,)


@pytest.mark.parametrize(("window_s", "sizes"), [(SHORT, SIZES), (FULL, 50)])
def test_whisper(window_s, sizes):
    rng, extract = random.Random("whisper"), tf.WhisperFeatureExtractor(feature_size=80, chunk_length=window_s)
    layout = family("whisper-small", wire_dtype="float32", window_s=window_s).audio
    for _ in range(sizes):
        samples = rng.randint(1, int(window_s * 1.3) * SAMPLING_RATE)
        theirs = extract(np.zeros(samples, np.float32), sampling_rate=SAMPLING_RATE, return_tensors="pt")
        media = layout(samples / SAMPLING_RATE)
        assert media.item.fields["input_features"].data.shape == tuple(theirs["input_features"][0].shape)
        assert media.num_tokens == tf.WhisperConfig().max_source_positions * window_s // 30


COUNTED = [name for name in PICTURES if name not in {"gemma-3", "llama-4", "qwen2.5-omni", "qwen3-omni"}]


@pytest.mark.parametrize("name", COUNTED)
def test_large_pictures_by_count(name):
    """Sizes whose pixels would take too long: transformers' own count of their tokens.

    Sides of 1 and 3 are left to the pixels, because Pixtral's count takes them for colour channels, and so are its refusals.
    """
    case = PICTURES[name]
    rng, processor, layout = random.Random(case.name), case.build(), case.family.image
    if name == "internvl":
        processor.image_processor.size = tf.image_utils.SizeDict(height=448, width=448)
        processor.image_seq_length, layout = 256, family(case.name).image
    with_marks = case.name.startswith(("internvl", "pixtral"))
    for _ in range(SIZES):
        size = 3 + random_side(rng, 20_000), 3 + random_side(rng, 20_000)
        media = ours(layout, *size)
        if media is None and name == "pixtral":
            continue
        try:
            (count,) = processor._get_num_multimodal_tokens(image_sizes=[size])["num_image_tokens"]
        except REFUSALS:
            count = 0
        assert (0 if media is None else media.num_tokens if with_marks else media.num_embeds) == count, size


def test_llama_4_canvases():
    """The placeholder does not tell rows from columns of tiles, and the processor keeps them to itself: ask its two functions."""
    module = tf.models.llama4.image_processing_llama4
    canvases = torch.tensor(module.find_supported_resolutions(16, tf.image_utils.SizeDict(height=336, width=336)))
    rng = random.Random("canvases")
    for _ in range(SIZES):
        size, most = (random_side(rng, 6000), random_side(rng, 6000)), rng.random() < 0.5
        theirs = module.get_best_fit(size, canvases, resize_to_max_canvas=most) // 336
        media = family("llama-4-scout", resize_to_max_canvas=most).image(*size)
        assert media.item.fields["aspect_ratios"].data.flat_values() == theirs.tolist(), size


CLIPS = {
    "qwen2-vl-7b": (tf.Qwen2VLVideoProcessor, 14, {"shortest_edge": 3136, "longest_edge": 12_845_056}),
    "qwen2.5-vl-7b": (tf.Qwen2VLVideoProcessor, 14, {"shortest_edge": 3136, "longest_edge": 12_845_056}),
    "qwen2.5-omni-7b": (tf.Qwen2VLVideoProcessor, 14, {"shortest_edge": 100_352, "longest_edge": 602_112}),
    "qwen3-omni-30b-a3b": (tf.Qwen2VLVideoProcessor, 16, {"shortest_edge": 131_072, "longest_edge": 786_432}),
    "qwen3-vl-8b": (tf.Qwen3VLVideoProcessor, 16, {"shortest_edge": 4096, "longest_edge": 25_165_824}),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name):
    """Patches of 500 random clips by transformers' own count, and the tensors of 20 small ones."""
    processor_class, patch, pixels = CLIPS[name]
    processor = processor_class(patch_size=patch, size=pixels, do_sample_frames=False, cap_pixels_per_frame=False)
    rng, clips = random.Random(name), family(name, wire_dtype="float32")
    for _ in range(SIZES):
        clip = rng.randint(1, 64), random_side(rng, 3000), random_side(rng, 3000)
        media = ours(clips.video, *clip)
        try:
            patches = processor.get_num_of_video_patches(*clip, {})
        except REFUSALS:
            patches = None
        assert (None if media is None else media.encoder_patches) == patches, clip
    for _ in range(20):
        frames, height, width = rng.randint(2, 9), rng.randint(20, 300), rng.randint(20, 300)
        theirs = processor([np.zeros((frames, height, width, 3), np.uint8)], return_tensors="pt")
        media = clips.video(frames, height, width)
        for field_name in ("pixel_values_videos", "video_grid_thw"):
            assert_same_field(PICTURES["qwen2-vl"], field_name, media.item.fields[field_name].data, theirs)


def test_gemma_4_clips():
    rng, processor, clips = random.Random("clips"), gemma4(280)(), family("gemma-4-31b")
    for _ in range(SIZES):
        clip = rng.randint(1, 32), random_side(rng, 3000), random_side(rng, 3000)
        (count,) = processor._get_num_multimodal_tokens(video_sizes=[clip])["num_video_tokens"]
        assert clips.video(*clip).num_embeds == count, clip
