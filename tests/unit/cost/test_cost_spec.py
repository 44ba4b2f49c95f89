"""What scenario files may say about costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from epdsim.core.errors import InputError
from epdsim.cost import LinearEncode, LinearLm, RenderCost, RooflineEncode, RooflineLm, StepLoad, TableEncode, TableLm
from epdsim.cost.blis import BlisRooflineLm, BlisTrainedLm
from epdsim.cost.efficiency import LM_EFFICIENCY
from epdsim.cost.spec import (
    EncodeCostSpec,
    LinkSpec,
    LmCostSpec,
    RenderCostSpec,
    RooflineLmSpec,
    build_encode,
    build_link,
    build_lm,
    build_render,
)

HERE = Path()


def test_fp8_weights_on_a_gpu_where_they_were_not_measured_are_told():
    def told(gpu, **more):
        return RooflineLmSpec(model="qwen3-vl-8b", gpu=gpu, **more).assumption

    assert told("l40s", weights="fp8").endswith(
        "on l40s; the shares of an H100 stand in (fp8_mfu 0.57, fp8_bandwidth 0.75)"
    )
    assert told("l40s", weights="fp8", fp8_mfu=0.5).endswith("(fp8_bandwidth 0.75)")
    given = {"fp8_mfu": 0.5, "fp8_bandwidth": 0.5}
    assert [told("l40s"), told("h200", weights="fp8"), told("l40s", weights="fp8", **given)] == ["", "", ""]


def lm(text):
    return build_lm(TypeAdapter(LmCostSpec).validate_python(text), HERE)


def encode(text):
    return build_encode(TypeAdapter(EncodeCostSpec).validate_python(text), HERE)


def render(text):
    return build_render(TypeAdapter(RenderCostSpec).validate_python(text), HERE)


def link(text):
    return build_link(TypeAdapter(LinkSpec).validate_python(text), HERE)


def test_kinds_build_their_models():
    setup = {"model": "qwen3-vl-8b", "gpu": "h100"}
    assert isinstance(lm({"kind": "roofline", **setup}), RooflineLm)
    assert isinstance(lm({"kind": "blis", "fit": "roofline", **setup}), BlisRooflineLm)
    assert isinstance(lm({"kind": "blis", "fit": "trained", **setup}), BlisTrainedLm)
    assert isinstance(lm({"kind": "linear", "fixed_ms": 1, "prefill_token_ms": 0.1}), LinearLm)
    assert isinstance(encode({"kind": "roofline", **setup}), RooflineEncode)
    assert isinstance(encode({"kind": "linear", "fixed_ms": 1, "patch_ms": 0.1}), LinearEncode)
    assert isinstance(render({"kind": "table"}), RenderCost)
    assert link({"kind": "named", "name": "pcie-gen5"}).bandwidth_bytes_per_s == 64e9
    assert link({"kind": "linear", "bandwidth_bytes_per_s": 1e6, "latency_ms": 2}).transfer_ms(1000) == 3


def test_overrides_replace_fitted_constants_one_by_one():
    cost = lm(
        {"kind": "roofline", "model": "qwen3-vl-8b", "gpu": "H100_SXM", "tp": 2, "mfu_prefill": 0.4, "layer_us": 0}
    )
    assert isinstance(cost, RooflineLm)
    assert (cost.tp, cost.efficiency.mfu_prefill, cost.efficiency.layer_us) == (2, 0.4, 0.0)
    assert cost.efficiency.kv_bandwidth == LM_EFFICIENCY["h100"].kv_bandwidth


def test_an_encoder_factor_multiplies_the_run():
    setup = {"kind": "roofline", "model": "qwen3-vl-4b", "gpu": "h100", "eager_us": 0}
    assert encode({**setup, "factor": 2.5}).encode_ms([1600]) == pytest.approx(2.5 * encode(setup).encode_ms([1600]))


def test_a_linear_render_is_a_line():
    cost = render(
        {"kind": "linear", "image_ms": 2, "megapixel_ms": 3, "item_ms": 0, "text_token_us": 0, "hash_bytes_per_s": 1e30}
    )
    assert cost.render_ms([2e6]) == pytest.approx(8)
    assert cost.render_ms([1e6, 4e6]) == pytest.approx(5 + 14)


def test_render_devices_differ():
    assert render({"device": "gpu", "kind": "table"}).preprocess_ms(1024**2) == 1.45
    assert render({"scale": 2, "kind": "table"}).preprocess_ms(1024**2) == 2 * 5.85


def test_tables_are_found_beside_the_scenario(tmp_path):
    steps = "phase,batch,context_tokens,step_ms\nprefill,1,64,3\nprefill,1,512,9\ndecode,1,512,2\ndecode,8,512,3\n"
    (tmp_path / "steps.csv").write_text(steps, encoding="utf-8")
    runs = "patches_per_image,num_images,encoder_ms\n256,1,2\n1024,1,4\n4096,1,14\n"
    (tmp_path / "runs.csv").write_text(runs, encoding="utf-8")
    steps_cost = build_lm(TypeAdapter(LmCostSpec).validate_python({"kind": "table", "csv": "steps.csv"}), tmp_path)
    assert isinstance(steps_cost, TableLm)
    assert steps_cost.step_ms(StepLoad(0, 0, 8, 4096)) == pytest.approx(3)
    runs_cost = build_encode(
        TypeAdapter(EncodeCostSpec).validate_python({"kind": "table", "csv": "runs.csv"}), tmp_path
    )
    assert isinstance(runs_cost, TableEncode)


@pytest.mark.parametrize(
    "text",
    [
        {"kind": "magic"},
        {"model": "qwen3-vl-8b", "gpu": "h100"},
        {"kind": "roofline", "model": "qwen3-vl-8b", "gpu": "h100", "speed": 3},
        {"kind": "roofline", "model": "qwen3-vl-8b", "gpu": "h100", "mfu_prefill": 0},
        {"kind": "roofline", "model": "qwen3-vl-8b", "gpu": "h100", "tp": 0},
        {"kind": "linear", "fixed_ms": float("nan"), "prefill_token_ms": 1},
        {"kind": "linear", "fixed_ms": -1, "prefill_token_ms": 1},
        {"kind": "linear", "fixed_ms": float("inf"), "prefill_token_ms": 1},
    ],
)
def test_wrong_keys_and_numbers_are_refused(text):
    with pytest.raises(ValidationError):
        lm(text)


@pytest.mark.parametrize(
    "text", [{"kind": "linear", "bandwidth_bytes_per_s": 0}, {"kind": "linear", "bandwidth_bytes_per_s": -5}]
)
def test_links_without_bandwidth_are_refused(text):
    with pytest.raises(ValidationError):
        link(text)


def test_unknown_names_are_told():
    with pytest.raises(InputError, match="language model"):
        lm({"kind": "roofline", "model": "gpt-0", "gpu": "h100"})
    with pytest.raises(InputError, match="GPU"):
        lm({"kind": "roofline", "model": "qwen3-vl-8b", "gpu": "abacus"})
    with pytest.raises(InputError, match="vision tower"):
        encode({"kind": "roofline", "model": "llama-3.1-8b", "gpu": "h100"})
    with pytest.raises(InputError, match="link"):
        link({"kind": "named", "name": "string"})
    with pytest.raises(InputError, match="cannot be read"):
        lm({"kind": "table", "csv": "absent.csv"})
