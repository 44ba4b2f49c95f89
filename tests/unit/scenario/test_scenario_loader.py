"""From a file to runs: axes, points, settings of keys, and errors with their place."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.scenario.loader import load_scenario, put
from epdsim.scenario.runner import build_point
from epdsim.scenario.yaml_file import YamlFile

AXES = {
    "images": "workload.requests.0.parts.1.count",
    "hop": "costs.hop_ms",
    "where": {"together": {}, "apart": {"fleet.topology": "e+pd", "fleet.encode.count": 2}},
}


def file_of(data):
    return YamlFile(Path("file.yaml"), data, {})


def get(data, key):
    for part in key.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def test_of_a_kept_failure_it_is_said_what_replays_it(tmp_path):
    path = tmp_path / "kept.yaml"
    path.write_text("failure: {property_id: STRIP-AVAIL}\ncase: {type: engine}\n")
    with pytest.raises(InputError, match="it is a failure that was kept; replay it: epdsim replay "):
        load_scenario(path)


def test_without_axes_there_is_one_run_of_the_file_as_it_stands(scenario):
    loaded = scenario()
    assert loaded.points == ({},)
    assert loaded.at({}) == loaded.spec


def test_a_block_is_the_product_of_its_lists_and_blocks_follow_each_other(scenario):
    loaded = scenario(axes=AXES, runs=[{"images": [1, 2], "hop": [0, 5]}, {"where": ["apart"]}])
    assert loaded.points == (
        {"images": 1, "hop": 0},
        {"images": 1, "hop": 5},
        {"images": 2, "hop": 0},
        {"images": 2, "hop": 5},
        {"where": "apart"},
    )


def test_a_point_is_the_file_with_its_settings_and_leaves_the_file_alone(scenario):
    loaded = scenario(axes=AXES, runs=[{"images": [7], "where": ["apart", "together"]}])
    before = copy.deepcopy(loaded.file.data)
    apart, together = (loaded.at(point) for point in loaded.points)
    assert apart.workload.requests[0].parts[1].count == together.workload.requests[0].parts[1].count == 7
    assert (apart.fleet.topology, apart.fleet.encode.count) == ("e+pd", 2)
    assert (together.fleet.topology, together.fleet.encode.count) == ("aggregated", 1)
    assert loaded.file.data == before
    assert loaded.at({"images": 7}, {"costs.hop_ms": 9}).costs.hop_ms == 9


def test_a_wrong_value_of_an_axis_is_found_when_the_file_is_loaded(scenario):
    with pytest.raises(InputError, match=r"key 'workload.requests.0.parts.1.count'.*: 0: "):
        scenario(axes=AXES, runs=[{"images": [1, 0]}])


def test_overrides_come_in_order_and_before_the_axes(scenario):
    loaded = scenario("costs.hop_ms=1", "costs.hop_ms=2", axes=AXES, runs=[{"images": [1]}, {"hop": [3]}])
    assert loaded.spec.costs.hop_ms == 2
    assert [loaded.at(point).costs.hop_ms for point in loaded.points] == [2, 3]


def test_two_places_that_share_an_alias_can_differ(scenario):
    loaded = scenario(fleet={"topology": "p+d", "prefill": (pool := {"count": 2}), "decode": pool})
    text = loaded.file.path.read_text(encoding="utf-8")
    assert "&id001" in text
    changed = loaded.at({}, {"fleet.decode.count": 5})
    assert (changed.fleet.prefill.count, changed.fleet.decode.count) == (2, 5)


NAMES = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(
    st.integers() | st.none(), lambda inner: st.dictionaries(NAMES, inner) | st.lists(inner, max_size=3)
)


@given(
    st.dictionaries(NAMES, TREES, min_size=1),
    st.lists(NAMES | st.integers(0, 4).map(str), min_size=1, max_size=4),
    st.integers(),
)
def test_what_is_put_is_found_there_and_nothing_else_changes(data, path, value):
    key, before = ".".join(path), copy.deepcopy(data)
    try:
        put(data, key, value, file_of(data))
    except InputError:
        return
    assert get(data, key) == value
    changed = [name for name in data if name != path[0] and data[name] != before.get(name)]
    assert not changed
    assert set(before) <= set(data)


def test_put_makes_mappings_on_the_way_and_reaches_into_lists():
    data = {"list": [{"x": 1}, None]}
    put(data, "new.deep.key", 1, file_of(data))
    put(data, "list.0.x", 2, file_of(data))
    put(data, "list.1", 3, file_of(data))
    assert data == {"list": [{"x": 2}, 3], "new": {"deep": {"key": 1}}}


def test_put_knows_which_keys_have_dots():
    data = {"slo": {"ttft_ms.p99": 1}, "plan": {"pools": {"fleet.encode.count": {"high": 2}}}}
    for key in (
        "slo.ttft_ms.p99",
        "slo.e2e_ms.p50",
        "slo.failed",
        "plan.pools.fleet.encode.count.low",
        "plan.pools.fleet.prefill.count.high",
        "plan.pools.fleet.render.count",
        "plan.check.workload.limit",
    ):
        put(data, key, 3, file_of(data))
    pools = {"fleet.encode.count": {"high": 2, "low": 3}, "fleet.prefill.count": {"high": 3}, "fleet.render.count": 3}
    bounds = {"ttft_ms.p99": 3, "e2e_ms.p50": 3, "failed": 3}
    assert data == {"slo": bounds, "plan": {"pools": pools, "check": {"workload.limit": 3}}}


def test_advice_needs_data_that_can_be_used_but_for_unknown_keys(scenario):
    with pytest.raises(InputError, match=r"'workload\.request': 3: no such key; did you mean 'requests'"):
        scenario("workload.request=3")
    with pytest.raises(InputError) as raised:
        scenario("workload.request=3", "costs.hop_ms=-1")
    assert "did you mean" not in str(raised.value)


def test_put_finds_keys_that_are_numbers():
    data = {"values": {1: 0.5, 2: 0.5}}
    put(data, "values.2", 0, file_of(data))
    assert data == {"values": {1: 0.5, 2: 0}}


@pytest.mark.parametrize("key", ["list.2", "list.x", "list.-1", "list.0.x.y", "scalar.x", "list.2.x", "empty.x"])
def test_put_refuses_a_way_that_leads_nowhere(key):
    data = {"list": [{"x": 1}], "scalar": 3, "empty": None}
    with pytest.raises(InputError, match="it leads nowhere"):
        put(data, key, 1, file_of(data))


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"family": "none"}, "line 2, key 'family'"),
        ({"family_options": {"none": 1}}, "key 'family_options'"),
        ({"fleet": {"dialect": "vllm-0.1"}}, "key 'fleet.dialect'"),
    ],
)
def test_what_only_building_finds_has_its_place_too(scenario, more, place):
    loaded = scenario(**more)
    with pytest.raises(InputError) as refused:
        build_point(loaded, {}, 0)
    assert place in str(refused.value)


@pytest.mark.parametrize(
    ("fleet", "told"),
    [
        ({"orchestrator": "decode_first", "topology": "e+pd"}, "needs decode instances, and topology is e+pd"),
        ({"orchestrator": "push", "ec": {"kind": "push"}}, "needs encode instances, and topology is aggregated"),
        (
            {"orchestrator": "push", "topology": "e+pd"},
            "orchestrator push and ec.kind store: set both to push, or neither",
        ),
        ({"ec": {"kind": "push"}, "topology": "e+pd"}, "orchestrator per_item and ec.kind push"),
        ({"ec": {"kind": "pull"}, "ec_capacity_gib": 1}, "ec_capacity_gib is that of a store, and ec.kind is pull"),
        ({"router": "nearest"}, "router"),
        ({"max_leg_items": 0}, "max_leg_items"),
        ({"ec": {"lease_ms": 0}}, "lease_ms"),
    ],
)
def test_an_orchestrator_that_the_fleet_cannot_have_is_refused(scenario, fleet, told) -> None:
    with pytest.raises(InputError, match=told.replace("+", r"\+")):
        scenario(fleet=fleet)


def test_orchestrator_routers_and_embeddings_come_through_to_the_fleet(scenario) -> None:
    told = {
        "topology": "e+p+d", "orchestrator": "batched", "max_leg_items": 3, "router": "least_loaded", "router_stale_ms": 50,
        "ec": {"kind": "pull", "lease_ms": 7, "producer_embeds": 99},
        "encode": {"router": "media_affinity"}, "decode": {"router": "round_robin"},
    }  # fmt: skip
    fleet = build_point(scenario(fleet=told), {}, 0).fleet
    assert (fleet.orchestrator, fleet.max_leg_items, fleet.router_stale_ms) == ("batched", 3, 50)
    assert [fleet.router_of(pool) for pool in (fleet.encode, fleet.prefill, fleet.decode)] == [
        "media_affinity",
        "least_loaded",
        "round_robin",
    ]
    assert (fleet.ec.kind, fleet.ec.lease_ms, fleet.ec.producer_embeds, fleet.ec.max_encodes) == ("pull", 7, 99, 3)
