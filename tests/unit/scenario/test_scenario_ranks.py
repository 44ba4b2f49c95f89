"""The `tp` of a pool: one key for the readers of its broadcast, for who shares the model, and for what an instance costs."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.cost.lm import RooflineLm
from epdsim.scenario.planning import pools_at
from epdsim.scenario.ranks import priced_otherwise
from epdsim.scenario.runner import build_point

ROOFLINE = "{kind: roofline, model: qwen3-vl-8b, gpu: h100}"
LM = f"costs.lm={ROOFLINE}"
POOLS = "plan={pools: {fleet.prefill.count: {high: 4}, fleet.decode.count: {high: 4}, fleet.encode.count: {high: 4}}}"
LEVEL = "slo={ttft_ms.p99: 100}"


def tps_of(loaded):
    fleet = build_point(loaded, {}, 0).fleet
    pools = [pool for pool in (fleet.prefill, fleet.decode) if pool is not None]
    found = [pool.lm.tp for pool in pools if isinstance(pool.lm, RooflineLm)]
    assert len(found) == len(pools)
    return found


def test_as_many_gpus_share_the_model_as_engines_have_ranks(scenario) -> None:
    ranks = ("fleet.topology=p+d", "fleet.prefill.tp=4", "fleet.decode.tp=2")
    assert tps_of(scenario(LM, *ranks)) == [4, 2]
    assert tps_of(scenario(LM, *ranks, f"costs.decode_lm={ROOFLINE}")) == [4, 2]
    assert tps_of(scenario(LM, "fleet.prefill.tp=4", "costs.lm.tp=4")) == [4], "stated twice alike; none decodes apart"


def test_engines_have_as_many_ranks_as_gpus_share_the_model_where_the_costs_alone_say_so(scenario) -> None:
    loaded = scenario(LM, "fleet.topology=p+d", "costs.lm.tp=4", "fleet.decode.scheduler.num_gpu_blocks=900")
    fleet = build_point(loaded, {}, 0).fleet
    assert (fleet.prefill.tp, fleet.decode.tp, *tps_of(loaded)) == (4, 4, 4, 4)
    apart = scenario(LM, "fleet.topology=p+d", "costs.lm.tp=4", f"costs.decode_lm={ROOFLINE}", "fleet.decode.tp=2")
    assert tps_of(apart) == [4, 2]
    pools, _ = pools_at(scenario(LM, LEVEL, POOLS, "fleet.topology=p+d", "costs.lm.tp=4"), {})
    assert [bounds.gpus for bounds in pools.values()] == [4, 4]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["fleet.prefill.tp=8", "costs.lm.tp=2"], "'costs.lm.tp': 2: engines have .*, and fleet.prefill.tp is 8; leave costs"),
        (["costs.lm.tp=2", "fleet.prefill.tp=1"], "'costs.lm.tp': 2: .*, and fleet.prefill.tp is 1; leave costs.lm.tp out"),
        (["fleet.topology=p+d", "fleet.decode.tp=1", "costs.lm.tp=2"], "'costs.lm.tp': 2: .*, and fleet.decode.tp is 1"),
        (
            ["fleet.topology=p+d", f"costs.decode_lm={ROOFLINE}", "costs.decode_lm.tp=4", "fleet.decode.tp=1"],
            "'costs.decode_lm.tp': 4: .*; leave costs.decode_lm.tp out, so that fleet.decode.tp sets both",
        ),
        (["fleet.prefill.tp=3"], "on the 3 GPUs of fleet.prefill.tp: tp = 3: must divide the 32 heads of qwen3-vl-8b"),
        (["fleet.topology=p+d", "fleet.decode.tp=5"], "on the 5 GPUs of fleet.decode.tp: tp = 5: must divide"),
    ],
)  # fmt: skip
def test_ranks_that_the_costs_contradict_are_refused(scenario, settings, told) -> None:
    with pytest.raises(InputError, match=told):
        build_point(scenario(LM, *settings), {}, 0)


def test_an_instance_costs_the_gpus_of_its_pool(scenario) -> None:
    ranks = ("fleet.topology=e+p+d", "fleet.prefill.tp=4", "fleet.decode.tp=2")
    loaded = scenario(LM, LEVEL, POOLS, *ranks)
    pools, _ = pools_at(loaded, {})
    assert [bounds.gpus for bounds in pools.values()] == [4, 2, 1]
    assert list(priced_otherwise(loaded.spec, pools)) == []
    wide = scenario(LM, LEVEL, POOLS, *ranks, f"costs.encode={ROOFLINE}", "costs.encode.tp=2")
    assert [bounds.gpus for bounds in pools_at(wide, {})[0].values()] == [4, 2, 2]


def test_a_price_that_is_stated_stands_and_is_told(scenario) -> None:
    pools = "plan={pools: {fleet.prefill.count: {high: 4, gpus: 1.5}}}"
    loaded = scenario(LM, LEVEL, pools, "fleet.prefill.tp=4")
    pools, _ = pools_at(loaded, {})
    assert pools["fleet.prefill.count"].gpus == 1.5
    (told,) = priced_otherwise(loaded.spec, pools)
    assert told == "an instance of prefill costs 1.5 GPUs, as plan.pools says; it is run on 4"


def test_an_axis_over_ranks_prices_each_point_for_itself(scenario) -> None:
    loaded = scenario(LM, LEVEL, POOLS, "axes={ranks: fleet.prefill.tp}", "runs=[{ranks: [1, 8]}]")
    prices = [pools_at(loaded, point)[0]["fleet.prefill.count"].gpus for point in loaded.points]
    assert prices == [1, 8]
