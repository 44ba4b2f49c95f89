"""Step costs: units, terms and limits of the roofline, the linear form and BLIS's forms."""

from __future__ import annotations

import timeit
from dataclasses import replace

import pytest

from epdsim.core.errors import InputError
from epdsim.cost import LinearLm, RooflineLm, StepLoad, chunk_pairs, lm_spec
from epdsim.cost.blis import BlisRooflineLm, BlisTrainedLm
from epdsim.cost.efficiency import LM_EFFICIENCY, LmEfficiency, lm_efficiency

PERFECT = LmEfficiency(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def decode(requests, context):
    return StepLoad(decode_requests=requests, decode_context_tokens=requests * context)


def prefill(tokens, computed=0):
    return StepLoad(tokens, chunk_pairs(computed, tokens))


def test_pairs_of_a_chunk_are_counted_one_by_one():
    assert chunk_pairs(7, 5) == sum(7 + i + 1 for i in range(5))
    assert chunk_pairs(0, 1) == 1


def test_pairs_of_chunks_add_up_to_those_of_the_whole():
    assert chunk_pairs(0, 100) + chunk_pairs(100, 28) + chunk_pairs(128, 72) == chunk_pairs(0, 200)


def test_linear_form_is_its_terms():
    cost = LinearLm(fixed_ms=3, prefill_token_ms=0.5, pair_ms=0.25, decode_request_ms=2, context_token_ms=0.125)
    assert cost.step_ms(StepLoad(2, 3, 4, 8)) == 3 + 1 + 0.75 + 8 + 1


@pytest.mark.parametrize("name", ["fixed_ms", "prefill_token_ms", "pair_ms", "decode_request_ms", "context_token_ms"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_linear_form_refuses_bad_coefficients(name, value):
    with pytest.raises(InputError, match=name):
        LinearLm(**({"fixed_ms": 1.0, "prefill_token_ms": 1.0} | {name: value}))


@pytest.mark.parametrize("cost", [LinearLm(fixed_ms=1, prefill_token_ms=1), RooflineLm("qwen3-vl-8b", "h100")])
def test_a_step_of_nothing_takes_no_time(cost):
    assert cost.step_ms(StepLoad()) == 0.0


def test_one_token_reads_the_weights_once():
    spec = lm_spec("llama-3.1-8b")
    weights_ms = 2 * (spec.dense_parameters + spec.head_parameters) / 3.35e12 * 1e3
    step = RooflineLm(spec, "h100", efficiency=PERFECT).step_ms(decode(1, 0))
    assert step == pytest.approx(weights_ms, rel=1e-3)
    assert 4 < step < 5  # 15 GB over 3.35 TB/s


def test_a_long_prompt_is_bound_by_operations():
    spec = lm_spec("llama-3.1-8b")
    tokens = 100_000
    flops = 2 * spec.active_parameters * tokens + 4 * 32 * 32 * 128 * tokens * (tokens + 1) / 2
    step = RooflineLm(spec, "h100", efficiency=PERFECT).step_ms(prefill(tokens))
    assert step == pytest.approx(flops / 989e12 * 1e3, rel=1e-3)


def test_context_costs_its_cache_bytes():
    cost = RooflineLm("qwen3-vl-8b", "h100", efficiency=PERFECT)
    added = cost.step_ms(decode(8, 5000)) - cost.step_ms(decode(8, 0))
    assert added == pytest.approx(8 * 5000 * 147_456 / 3.35e12 * 1e3)


def test_tensor_parallel_divides_work_and_adds_all_reduces():
    one = RooflineLm("qwen3-vl-32b", "h100", 1, PERFECT).step_ms(prefill(4096))
    four = RooflineLm("qwen3-vl-32b", "h100", 4, PERFECT).step_ms(prefill(4096))
    ring_ms = 2 * 64 * 4096 * 5120 * 2 * (2 * 3 / 4) / 450e9 * 1e3
    assert four == pytest.approx(one / 4 + ring_ms)


def test_a_cache_without_heads_to_split_is_read_by_every_gpu():
    def context_ms(model, tp):
        cost = RooflineLm(model, "h100", tp, PERFECT)
        return cost.step_ms(decode(1, 100_000)) - cost.step_ms(decode(1, 0))

    assert context_ms("kimi-vl-a3b", 4) == pytest.approx(context_ms("kimi-vl-a3b", 1))
    assert context_ms("qwen3-vl-8b", 4) == pytest.approx(context_ms("qwen3-vl-8b", 1) / 4)
    assert context_ms("qwen3-vl-30b-a3b", 8) == pytest.approx(context_ms("qwen3-vl-30b-a3b", 4))


def test_one_token_of_a_mixture_reads_its_experts_only():
    spec = lm_spec("qwen3-vl-30b-a3b")
    cost = RooflineLm(spec, "h100", efficiency=PERFECT)
    one_ms = 2 * (spec.active_parameters + spec.head_parameters) / 3.35e12 * 1e3
    all_ms = 2 * (spec.parameters - spec.head_parameters) / 3.35e12 * 1e3
    assert cost.step_ms(decode(1, 0)) == pytest.approx(one_ms, rel=1e-3)
    assert cost.step_ms(decode(256, 0)) == pytest.approx(all_ms, rel=0.05)


def test_sliding_layers_read_no_more_than_their_window():
    cost = RooflineLm("gemma-4-31b", "h100", 4, PERFECT)
    inside = cost.step_ms(decode(1, 1024)) - cost.step_ms(decode(1, 1023))
    outside = cost.step_ms(decode(1, 1025)) - cost.step_ms(decode(1, 1024))
    assert inside == pytest.approx(901_120 / 4 / 3.35e12 * 1e3, rel=1e-6)
    assert outside == pytest.approx(81_920 / 4 / 3.35e12 * 1e3, rel=1e-6)


def test_a_mixed_step_is_cheaper_than_its_parts():
    cost = RooflineLm("qwen3-vl-8b", "h100")
    mixed = cost.step_ms(StepLoad(512, chunk_pairs(0, 512), 16, 16 * 1000))
    assert mixed < cost.step_ms(prefill(512)) + cost.step_ms(decode(16, 1000))
    assert mixed > max(cost.step_ms(prefill(512)), cost.step_ms(decode(16, 1000)))


def test_a_chunk_with_a_past_costs_more_than_one_without():
    cost = RooflineLm("qwen3-vl-8b", "h100")
    assert cost.step_ms(prefill(512, computed=8192)) > cost.step_ms(prefill(512))


@pytest.mark.parametrize("gpu_name", LM_EFFICIENCY)
def test_every_gpu_has_a_roofline(gpu_name):
    step = RooflineLm("qwen3-vl-8b", gpu_name).step_ms(decode(1, 1024))
    assert 1 < step < 30


@pytest.mark.parametrize("tp", [0, -1, 3])
def test_tp_must_divide_the_heads(tp):
    with pytest.raises(InputError, match="heads"):
        RooflineLm("qwen3-vl-8b", "h100", tp)


@pytest.mark.parametrize("value", [0.0, -0.5, float("nan"), float("inf")])
def test_efficiencies_must_be_positive(value):
    with pytest.raises(InputError, match="mfu_attention"):
        LmEfficiency(1.0, 1.0, value, 1.0, 1.0, 1.0)


def test_blis_roofline_is_the_larger_of_operations_and_bytes():
    spec = lm_spec("llama-3.1-8b")
    cost = BlisRooflineLm(spec, "h100")
    weights = 2 * spec.dense_parameters
    kv = spec.kv_bytes_per_token
    assert cost.step_ms(decode(1, 999)) == pytest.approx((weights + 1000 * kv) / 3.35e12 * 1e3)
    flops = 2 * spec.active_parameters * 4096 + 4 * 32 * 32 * 128 * chunk_pairs(0, 4096)
    assert cost.step_ms(prefill(4096)) == pytest.approx(flops / (989e12 * 0.45) * 1e3)
    both = StepLoad(4096, chunk_pairs(0, 4096), 1, 999)
    assert cost.step_ms(both) == pytest.approx(cost.step_ms(decode(1, 999)) + cost.step_ms(prefill(4096)))


def test_blis_has_no_roofline_for_other_gpus():
    with pytest.raises(InputError, match="BLIS"):
        BlisRooflineLm("llama-3.1-8b", "b200")


@pytest.mark.parametrize("cost", [BlisRooflineLm("qwen3-14b", "h100", 2), BlisTrainedLm("qwen3-14b", "h100", 2)])
def test_blis_takes_no_time_for_nothing(cost):
    assert cost.step_ms(StepLoad()) == 0.0


@pytest.mark.parametrize(
    ("model", "tp", "measured_ms"),
    [
        ("llama-3.1-8b", 1, 8.5),
        ("llama-3.1-8b", 2, 5.9),
        ("qwen2.5-7b", 1, 7.0),
        ("mistral-nemo-12b", 1, 10.3),
        ("qwen3-14b", 1, 12.4),
        ("codellama-34b", 2, 14.7),
        ("llama-3.1-70b", 4, 18.3),
    ],
)
def test_decode_steps_lie_below_measured_inter_token_latencies_but_not_far(model, tp, measured_ms):
    """Mean ITL of vLLM 0.15.1 on H100 (inference-sim/sim-to-real-accuracy-validation), which holds what the engine adds."""
    for cost in (RooflineLm(model, "h100", tp), BlisTrainedLm(model, "h100", tp)):
        assert 0.65 * measured_ms < cost.step_ms(decode(4, 600)) < 1.1 * measured_ms


def test_a_step_costs_little_to_price():
    """The stated targets are 1 and 2 microseconds; the bound leaves room for a loaded machine."""
    load = StepLoad(1024, 524_800, 17, 40_000)
    for cost, target_us in ((LinearLm(fixed_ms=1, prefill_token_ms=1), 1), (RooflineLm("qwen3-vl-30b-a3b", "h100"), 2)):
        best = min(timeit.repeat(lambda cost=cost: cost.step_ms(load), number=2000, repeat=5)) / 2000
        assert best * 1e6 < 5 * target_us


def test_fp8_gains_what_measured_products_gain():
    """H100, vLLM 0.24: products of bf16 take 1.13 times as long with thousands of rows, 1.46 with a few (medians)."""
    constants = replace(lm_efficiency("h100"), layer_us=0.0, request_us=0.0, activation_passes=0.0)
    big = replace(lm_spec("llama-3.1-70b"), vocab=1)
    bf16, fp8 = (RooflineLm(big, "h100", 1, constants, weights=kind) for kind in ("bf16", "fp8"))
    many, few = StepLoad(8192, 0), StepLoad(0, 0, 1, 1)
    assert bf16.step_ms(many) / fp8.step_ms(many) == pytest.approx(1.13, rel=0.02)
    assert bf16.step_ms(few) / fp8.step_ms(few) == pytest.approx(1.46, rel=0.04)


def test_a_gpu_without_fp8_reads_half_the_bytes_and_multiplies_as_before():
    bf16, fp8 = (RooflineLm("llama-3.1-8b", "a100", weights=kind) for kind in ("bf16", "fp8"))
    assert fp8.step_ms(StepLoad(0, 0, 1, 100)) < 0.8 * bf16.step_ms(StepLoad(0, 0, 1, 100))
    assert fp8.step_ms(StepLoad(8192, 0)) == pytest.approx(bf16.step_ms(StepLoad(8192, 0)), rel=0.01)


def test_an_fp8_kv_cache_is_read_in_half_the_time():
    bf16, fp8 = (RooflineLm("llama-3.1-8b", "h100", kv_cache=kind) for kind in ("bf16", "fp8"))
    empty, full = StepLoad(0, 0, 8, 0), StepLoad(0, 0, 8, 80_000)
    assert bf16.step_ms(empty) == fp8.step_ms(empty)
    assert fp8.step_ms(full) - fp8.step_ms(empty) == pytest.approx((bf16.step_ms(full) - bf16.step_ms(empty)) / 2)
