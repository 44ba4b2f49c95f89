"""Published token counts and bytes: vLLM issues 46722 and 52040, PR 52041, llm-d's examples, model cards."""

import csv

import pytest

from epdsim.media import family

CAPPED = {"max_pixels": 28 * 28 * 1280}
TABLE = [  # height, width, Qwen2.5-VL, with the 1,280-token cap, Qwen3-VL: tokens and megabytes in bfloat16
    (200, 300, 77, 0.72, 77, 70, 0.86),
    (336, 336, 144, 1.35, 144, 100, 1.23),
    (512, 512, 324, 3.05, 324, 256, 3.15),
    (640, 640, 529, 4.98, 529, 400, 4.92),
    (720, 1280, 1196, 11.25, 1196, 880, 10.81),
    (1024, 1024, 1369, 12.88, 1225, 1024, 12.58),
    (1080, 1920, 2691, 25.32, 1222, 2040, 25.07),
    (2048, 2048, 5329, 50.14, 1225, 4096, 50.33),
    (2160, 3840, 10549, 99.24, 1222, 8160, 100.27),
]


def pixel_bytes(media):
    return media.item.fields["pixel_values"].nbytes


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}x{row[1]}")
def test_qwen_table(row):
    height, width, tokens25, megabytes25, capped, tokens3, megabytes3 = row
    qwen25, qwen3 = family("qwen2.5-vl-7b").image(height, width), family("qwen3-vl-8b").image(height, width)
    assert (qwen25.num_tokens, round(pixel_bytes(qwen25) / 1e6, 2)) == (tokens25, megabytes25)
    assert family("qwen2.5-vl-7b", **CAPPED).image(height, width).num_tokens == capped
    assert (qwen3.num_tokens, round(pixel_bytes(qwen3) / 1e6, 2)) == (tokens3, megabytes3)
    assert family("qwen2-vl-7b").image(height, width).num_tokens == tokens25
    wide = family("qwen3-vl-8b", wire_dtype="float32").image(height, width)
    assert pixel_bytes(wide) == 2 * pixel_bytes(qwen3)


def test_qwen3_vl_wire_example():
    """llm-d's example: a 200x300 picture is 70 tokens and 860,160 raw bytes, and three integers of grid."""
    media = family("qwen3-vl-2b").image(200, 300)
    assert (media.num_tokens, pixel_bytes(media), media.is_embed) == (70, 860_160, None)
    assert media.item.fields["image_grid_thw"].data.flat_values() == [1, 14, 20]
    assert media.payload_bytes == 860_160 + 24


@pytest.mark.parametrize(
    ("size", "tokens", "base64_megabytes"), [((1280, 1024), 1280, 21.0), ((1536, 1536), 2304, 37.7)]
)
def test_qwen3_vl_bodies(size, tokens, base64_megabytes):
    media = family("qwen3-vl-2b").image(*size)
    assert media.num_tokens == tokens
    assert pixel_bytes(media) * 4 / 3 / 1e6 == pytest.approx(base64_megabytes, abs=0.05)


@pytest.mark.parametrize(("size", "megabytes"), [((640, 640), 13.1), ((1080, 1920), 66.8)])
def test_qwen3_vl_embeddings(size, megabytes):
    media = family("qwen3-vl-8b").image(*size)
    assert media.embedding_bytes == media.num_tokens * 32 * 1024
    assert round(media.embedding_bytes / 1e6, 1) == megabytes


def test_deepstack_levels_are_a_constant():
    """A checkpoint with an empty list stores one width: llm-d's sample entry is 576 x 2,048 x 2 bytes."""
    media = family("qwen3-vl-2b", deepstack_levels=0).image(24 * 32, 24 * 32)
    assert (media.num_tokens, media.embedding_bytes) == (576, 2_359_296)


def test_gemma_4_budget():
    """vLLM issue 52040: 15,482,880 bytes a picture at 560 soft tokens, whatever its size."""
    for size in [(500, 500), (37, 411), (1080, 1920)]:
        assert pixel_bytes(family("gemma-4-31b", max_soft_tokens=560).image(*size)) == 15_482_880
    assert family("gemma-4-31b", max_soft_tokens=560).image(700, 700).num_embeds == 529
    square = family("gemma-4-31b").image(700, 700)
    assert (square.num_embeds, square.num_tokens) == (256, 258)


def test_gemma_4_clips_and_sounds():
    clip = family("gemma-4-e4b").video(32, 720, 1280)
    assert clip.item.fields["pixel_values_videos"].data.shape == (32, 630, 768)
    assert clip.num_embeds <= 32 * 70
    seconds = family("gemma-4-e4b").audio(10.0)
    assert seconds.num_embeds == 10_000 // 40
    assert family("gemma-4-e4b").audio(600.0).num_embeds == 750


@pytest.mark.parametrize(
    ("name", "size", "embeds", "tokens"),
    [
        ("gemma-3-27b", (700, 900), 256, 260),
        ("llava-1.5-7b", (700, 900), 576, 576),
        ("internvl3-8b", (448, 448), 256, 258),
        ("internvl3-8b", (896, 1344), 7 * 256, 7 * 256 + 2),
        ("internvl3-8b", (1344, 1792), 13 * 256, 13 * 256 + 2),
        ("llama-4-scout", (336, 336), 144, 147),
        ("llama-4-scout", (1344, 1344), 17 * 144, 17 * 144 + 3 + 16),
        ("pixtral-12b", (1024, 1024), 64 * 64, 64 * 65),
        ("pixtral-12b", (512, 512), 32 * 32, 32 * 33),
    ],
)
def test_fixed_and_tiled_pictures(name, size, embeds, tokens):
    media = family(name).image(*size)
    assert (media.num_embeds, media.num_tokens) == (embeds, tokens)


def test_llama_4_payload():
    """vLLM PR 19242 counts about 11 MB a picture."""
    assert pixel_bytes(family("llama-4-scout").image(2000, 2000)) == 17 * 3 * 336 * 336 * 2 == 11_515_392


def test_sounds():
    assert family("qwen2-audio-7b").audio(30.0).num_tokens == 750
    assert family("qwen2-audio-7b").audio(10.0).num_tokens == 250
    for seconds in (0.5, 12.0, 60.0):
        whisper = family("whisper-large-v3").audio(seconds)
        assert (whisper.num_tokens, whisper.item.fields["input_features"].data.shape) == (1500, (128, 3000))
    assert family("qwen2.5-omni-7b").audio(60.0).num_tokens == 1500
    assert family("qwen3-omni-30b-a3b").audio(60.0).num_tokens == 60 * 13
    assert family("qwen3-omni-30b-a3b").audio(0.99).num_tokens == 13


def test_qwen_clips():
    """Two frames a temporal patch; Qwen3-VL shares its pixel limits among all frames (class defaults here)."""
    clip = family("qwen2.5-vl-7b").video(16, 280, 280, 2.0)
    assert (clip.num_tokens, clip.item.fields["second_per_grid_ts"].data.flat_values()) == (8 * 100, [1.0])
    limits = {"video_min_pixels": 128 * 32 * 32, "video_max_pixels": 32 * 32 * 768}
    clip = family("qwen3-vl-8b", **limits).video(16, 1080, 1920, 2.0)
    steps, rows, columns = clip.item.fields["video_grid_thw"].data.flat_values()
    assert (steps, clip.num_embeds) == (8, 8 * rows * columns // 4)
    assert 16 * rows * columns * 16**2 <= 32 * 32 * 768
    assert clip.item.fields["timestamps"].data == tuple(0.25 + step for step in range(8))


def test_modelled_encoder_table(shared_path):
    """AIConfigurator's table states tokens and patches of its pictures."""
    with shared_path("data/aiconfigurator-derived/encoder_latency.csv").open() as lines:
        rows = {(row["height"], row["width"]): row for row in csv.DictReader(lines)}
    assert len(rows) > 5
    for row in rows.values():
        media = family("qwen3-vl-8b", min_pixels=1).image(int(row["height"]), int(row["width"]))
        assert media.num_tokens == int(row["tokens_per_image"])
        assert media.encoder_patches == int(row["patches_per_image"])
