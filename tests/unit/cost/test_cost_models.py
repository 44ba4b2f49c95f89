"""Shapes and rates against figures that are published elsewhere."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.cost import gpu, lm_spec, vision_spec
from epdsim.cost.hardware import GPUS
from epdsim.cost.models import LMS, VISIONS


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-vl-2b", 1.72),  # Qwen3-1.7B: 1.7 B
        ("qwen3-vl-4b", 4.02),  # Qwen3-4B: 4.0 B
        ("qwen3-vl-8b", 8.19),  # Qwen3-8B: 8.2 B
        ("qwen3-vl-32b", 32.8),  # Qwen3-32B: 32.8 B
        ("qwen3-vl-30b-a3b", 30.5),  # Qwen3-30B-A3B: 30.5 B
        ("qwen3-vl-235b-a22b", 235.1),  # Qwen3-235B-A22B: 235 B
        ("qwen2.5-vl-72b", 72.7),  # Qwen2.5-72B: 72.7 B
        ("qwen2.5-7b", 7.61),
        ("kimi-vl-a3b", 16.0),  # Moonlight: 16 B
        ("gemma-4-31b", 30.7),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("qwen3-14b", 14.8),
        ("mistral-nemo-12b", 12.2),
        ("codellama-34b", 33.7),
        ("llava-1.5-7b", 6.74),
        ("internvl2-1b", 0.494),  # Qwen2-0.5B
        ("internvl3-2b", 1.54),  # Qwen2.5-1.5B
        ("llama-4-scout", 107.8),  # 109 B with the vision tower
    ],
)
def test_parameter_counts_are_those_of_the_model_cards(name, billions):
    assert lm_spec(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-vl-30b-a3b", 3.3), ("qwen3-vl-235b-a22b", 22.0), ("llama-4-scout", 17.2)]
)
def test_active_parameters_with_embedding_and_head_are_those_of_the_names(name, billions):
    spec = lm_spec(name)
    assert (spec.active_parameters + 2 * spec.head_parameters) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "size"),
    [("qwen3-vl-4b", 147_456), ("qwen3-vl-8b", 147_456), ("qwen3-vl-32b", 262_144), ("qwen3-vl-30b-a3b", 98_304)],
)
def test_kv_bytes_per_token_are_the_published_ones(name, size):
    assert lm_spec(name).kv_bytes_per_token == size


def test_sliding_layers_count_apart_from_full_ones():
    spec = lm_spec("gemma-4-31b")
    assert spec.full_kv_bytes_per_token == 10 * 2 * 4 * 512 * 2
    assert spec.kv_bytes_per_token - spec.full_kv_bytes_per_token == 50 * 2 * 16 * 256 * 2
    assert spec.score_values == 10 * 32 * 512
    assert spec.sliding_score_values == 50 * 32 * 256


@pytest.mark.parametrize(
    ("name", "depth", "hidden", "ffn"),
    [("qwen3-vl-2b", 24, 1024, 4096), ("qwen3-vl-4b", 24, 1024, 4096), ("qwen3-vl-235b-a22b", 27, 1152, 4304)],
)
def test_vision_towers_have_the_published_shapes(name, depth, hidden, ffn):
    spec = vision_spec(name)
    assert (spec.depth, spec.hidden, spec.ffn) == (depth, hidden, ffn)


@pytest.mark.parametrize(
    ("name", "millions"), [("gemma-4-31b", 569.55 - 2 * 10240 * 1152 / 1e6), ("qwen2.5-vl-7b", 676.6)]
)
def test_vision_parameters_are_those_of_the_checkpoints(name, millions):
    spec = vision_spec(name)
    outside = spec.merger_parameters if name.startswith("gemma") else 0  # its projection counts to the language model
    assert (spec.parameters - outside) / 1e6 == pytest.approx(millions, rel=0.005)


def test_deepstack_widens_the_embeddings_fourfold():
    assert vision_spec("qwen3-vl-8b").embedding_bytes_per_token == 4 * 4096 * 2
    assert 400 * vision_spec("qwen3-vl-8b").embedding_bytes_per_token == pytest.approx(13.1e6, rel=0.01)
    assert vision_spec("qwen2.5-vl-7b").embedding_bytes_per_token == 3584 * 2


def test_every_vision_tower_feeds_a_known_language_model():
    for name, tower in VISIONS.items():
        assert tower.out_hidden == LMS[name].hidden


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-8B-Instruct", "QWEN3-VL-8B", "qwen3-vl-8b"])
def test_checkpoint_names_are_understood(name):
    assert lm_spec(name).name == "qwen3-vl-8b"
    assert vision_spec(name).name == "qwen3-vl-8b"


def test_gpu_names_are_understood():
    assert gpu("H100_SXM") is gpu("h100")
    assert gpu("h100").hbm_bytes_per_s == 3.35e12
    assert gpu("a100").bf16_flops == 312e12


@pytest.mark.parametrize("lookup", [gpu, lm_spec, vision_spec])
def test_unknown_names_are_refused_with_the_known_ones(lookup):
    with pytest.raises(InputError, match="use one of"):
        lookup("nothing-9b")


def test_every_record_says_where_it_comes_from():
    assert all(each.source for table in (GPUS, LMS, VISIONS) for each in table.values())
