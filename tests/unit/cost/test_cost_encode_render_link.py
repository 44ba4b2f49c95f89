"""Encoder runs, renders and links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.errors import InputError
from epdsim.cost import LinearEncode, Link, RenderCost, RooflineEncode, named_link, vision_spec
from epdsim.cost.efficiency import ENCODE_EFFICIENCY, EncodeEfficiency, encode_efficiency
from epdsim.cost.link import LINKS
from epdsim.cost.render import PREPROCESS_CPU_MS, PREPROCESS_GPU_MS

PERFECT = EncodeEfficiency(1.0, 1.0, 1.0)


def kernels(model, gpu_name):
    """A tower without its launches, as in a CUDA graph."""
    return RooflineEncode(model, gpu_name, efficiency=replace(encode_efficiency(gpu_name), eager_us=0.0))


def test_linear_encode_is_its_terms():
    cost = LinearEncode(fixed_ms=1, item_ms=10, patch_ms=0.5, pair_ms=0.25)
    assert cost.encode_ms([2, 4]) == 1 + 20 + 3 + 0.25 * (4 + 16)
    assert cost.encode_ms([]) == 0.0


def test_large_items_are_bound_by_operations():
    spec = vision_spec("qwen3-vl-8b")
    patches = 200_000
    flops = 2 * spec.layer_parameters * patches + 2 * spec.merger_parameters * patches / 4
    flops += 4 * patches**2 * 1152 * 27
    run = RooflineEncode(spec, "h100", efficiency=PERFECT).encode_ms([patches])
    assert run == pytest.approx(flops / 989e12 * 1e3, rel=1e-3)


def test_attention_is_quadratic_per_item_not_per_run():
    cost = RooflineEncode("qwen3-vl-8b", "h100")
    whole, parts = cost.encode_ms([32_000]), cost.encode_ms([8000] * 4)
    pair_ms = 4 * 1152 * 27 / (989e12 * ENCODE_EFFICIENCY["h100"].mfu_attention) * 1e3
    assert whole - parts == pytest.approx(pair_ms * (32_000**2 - 4 * 8000**2))


def test_windowed_towers_pay_for_their_windows_only():
    windowed, full = vision_spec("qwen2.5-vl-7b"), vision_spec("qwen2-vl-7b")
    assert windowed.full_layers == 4
    assert full.full_layers == 32
    big = [40_000]
    fast = RooflineEncode(windowed, "h100", efficiency=PERFECT).encode_ms(big)
    assert fast < 0.3 * RooflineEncode(full, "h100", efficiency=PERFECT).encode_ms(big)


def test_splitting_the_tower_does_not_make_it_faster():
    """Qwen2.5-VL-72B on H20, 4 images: 492, 466 and 524 ms at TP 2, 4 and 8 (SGLang blog, 2026-01-12)."""
    runs = [RooflineEncode("qwen2.5-vl-72b", "h20", tp).encode_ms([10_764] * 4) for tp in (1, 2, 4, 8)]
    assert len(set(runs)) == 1
    assert runs[0] == pytest.approx((492.1 + 465.8 + 523.8) / 3, rel=0.06)


def test_dealing_items_out_takes_the_even_share_or_the_largest_item():
    one = RooflineEncode("qwen3-vl-8b", "h100")
    four = RooflineEncode("qwen3-vl-8b", "h100", 4, tp_mode="data")
    assert four.encode_ms([4096] * 4) == pytest.approx(one.encode_ms([4096]))
    assert four.encode_ms([16_384, 256]) == pytest.approx(one.encode_ms([16_384]))
    assert four.encode_ms([4096] * 8) == pytest.approx(one.encode_ms([4096] * 2))


@pytest.mark.parametrize("gpu_name", ENCODE_EFFICIENCY)
def test_every_gpu_has_an_encoder(gpu_name):
    assert 0.5 < RooflineEncode("qwen3-vl-8b", gpu_name).encode_ms([1600]) < 60


def test_a100_takes_two_to_three_times_an_h100():
    """What the public runs on A100 ask for: H100 encoder times x about 2.5 to 3."""
    for patches in (1600, 4096):
        slow, fast = (kernels("qwen3-vl-4b", name).encode_ms([patches]) for name in ("a100", "h100"))
        assert 2.4 < slow / fast < 3.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bad_encoder_numbers_are_refused(value):
    with pytest.raises(InputError, match="factor"):
        EncodeEfficiency(1, 1, 1, factor=value)
    with pytest.raises(InputError, match="tp"):
        RooflineEncode("qwen3-vl-8b", "h100", 0)
    with pytest.raises(InputError, match="patch_ms"):
        LinearEncode(fixed_ms=1, patch_ms=-1.0)


@pytest.mark.parametrize("table", [PREPROCESS_CPU_MS, PREPROCESS_GPU_MS])
def test_the_published_preprocessing_rows_come_out(table):
    cost = RenderCost(table)
    for pixels, millis in table:
        assert cost.preprocess_ms(pixels) == pytest.approx(millis, rel=1e-12)


def test_preprocessing_between_below_and_beyond_the_rows():
    cost = RenderCost()
    assert 4.95 < cost.preprocess_ms(720 * 1280) < 5.85
    assert cost.preprocess_ms(100) == 5.34
    per_pixel = (40.48 - 22.61) / (4096**2 - 3072**2)
    assert cost.preprocess_ms(8192**2) == pytest.approx(40.48 + per_pixel * (8192**2 - 4096**2))


def test_render_adds_its_parts():
    cost = RenderCost(scale=2.0, hash_bytes_per_s=1e9, fixed_ms=7, item_ms=3, media_ms=0, text_token_us=10)
    pixels = 1024 * 1024
    hash_ms = 3 * pixels / 1e9 * 1e3
    assert cost.render_ms([pixels], 500) == pytest.approx(7 + 3 + 5 + hash_ms + 2 * 5.85)
    assert cost.render_ms([], 500) == pytest.approx(12)
    assert cost.render_ms([], 0, [pixels]) == pytest.approx(7 + 3 + hash_ms)


def test_files_are_decoded_eight_at_a_time_before_anything_is_known_of_them():
    cost = RenderCost(hash_bytes_per_s=1e30, item_ms=0, media_ms=2, decode_megapixel_ms=10)
    assert cost.decode_ms([]) == 0
    assert cost.decode_ms([1e6]) == pytest.approx(10)
    assert cost.decode_ms([1e6] * 8) == pytest.approx(10)
    assert cost.decode_ms([1e6] * 12) == pytest.approx(15)
    assert cost.decode_ms([4e6, 1e6]) == pytest.approx(40)
    assert cost.render_ms([], 0, [1e6], [1e6]) == pytest.approx(2 + 10)


def test_a_server_takes_what_it_was_spared_for_a_picture_of_2048_pixels_a_side():
    """66 ms (vLLM PR 50390); beside them only the placeholders and small change."""
    pixels = 2048 * 2048
    assert RenderCost(media_ms=0, item_ms=0, hash_bytes_per_s=1e30).render_ms(
        [pixels], 0, (), [pixels]
    ) == pytest.approx(66, abs=0.1)


def test_a_small_picture_takes_an_eager_tower_as_long_as_its_launches():
    eager, graph = RooflineEncode("qwen3-vl-8b", "h200"), kernels("qwen3-vl-8b", "h200")
    assert eager.encode_ms([196]) == eager.encode_ms([1024]) == pytest.approx(27 * 0.4)
    assert graph.encode_ms([196]) < 2 < graph.encode_ms([1024])
    assert eager.encode_ms([16384]) == graph.encode_ms([16384])
    # What a CUDA graph spared in the mean (LightLLM PR 1181, a tower of 27 layers on H200).
    assert eager.encode_ms([196]) - graph.encode_ms([196]) == pytest.approx(10.9, rel=0.2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale": 0.0},
        {"decode_megapixel_ms": -1.0},
        {"media_ms": float("nan")},
        {"scale": float("nan")},
        {"hash_bytes_per_s": 0.0},
        {"item_ms": -1.0},
        {"table": ((1.0, 1.0),)},
        {"table": ((2.0, 1.0), (1.0, 2.0))},
        {"table": ((1.0, -1.0), (2.0, 2.0))},
    ],
)
def test_bad_render_numbers_are_refused(arguments):
    with pytest.raises(InputError):
        RenderCost(**arguments)


@pytest.mark.parametrize("pixels", [-1, float("nan")])
def test_bad_pictures_are_refused(pixels):
    with pytest.raises(InputError, match="pixels"):
        RenderCost().preprocess_ms(pixels)


def test_a_gigabyte_over_a_gigabyte_per_second_takes_a_second():
    assert Link(1e9, 0.5).transfer_ms(1_000_000_000) == 1000.5
    assert Link(1e9, 0.5).transfer_ms(0) == 0.5


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("bandwidth", "latency"), [(0, 0), (-1, 0), (NAN, 0), (INF, 0), (1, -1), (1, NAN)])
def test_bad_links_are_refused(bandwidth, latency):
    with pytest.raises(InputError, match="must be"):
        Link(bandwidth, latency)


@pytest.mark.parametrize("nbytes", [-1, float("nan")])
def test_bad_transfers_are_refused(nbytes):
    with pytest.raises(InputError, match="transfer"):
        Link(1e9).transfer_ms(nbytes)


def test_links_by_name():
    assert named_link("rdma-400g").bandwidth_bytes_per_s == 50e9
    assert all(link.transfer_ms(1 << 30) > 0 for link in LINKS.values())
    with pytest.raises(InputError, match="use one of"):
        named_link("string")
