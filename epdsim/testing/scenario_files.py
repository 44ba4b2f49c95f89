"""Random scenario files, as plain data: small fleets of every topology under every router, payload, sharing of links and fault.

A file is what a user could have written, so that a law that fails shows one to replay.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

FAMILIES = ("qwen3-vl-8b", "qwen2.5-vl-3b", "internvl3-8b")
_LAST_MS = 4000
_ROUTERS = st.sampled_from(["round_robin", "least_loaded", "prefix_affinity", "media_affinity"])

_SHARINGS = ["none", "instance", "fleet", "fair-instance", "fair-fleet"]


@st.composite
def scenario_files(draw: st.DrawFn) -> dict[str, Any]:
    """One file; every request of it could be served by an idle fleet, unless something is lost for good."""
    topology = draw(st.sampled_from(["aggregated", "p+d", "e+pd", "e+p+d"]))
    counts = {pool: draw(st.integers(1, 3)) for pool in ("encode", "prefill", "decode")}
    told: dict[str, Any] = {
        "name": "random",
        "family": draw(st.sampled_from(FAMILIES)),
        "fleet": {
            "topology": topology,
            **draw(_hand_overs(topology)),
            "max_leg_items": draw(st.sampled_from([None, 1, 2])),
            "router": draw(_ROUTERS),
            "router_stale_ms": draw(st.sampled_from([0, 100])),
            "prefill_payload": draw(st.sampled_from(["full", "metadata", "deferred"])),
            "render": {"count": draw(st.integers(1, 3)), "cache_gib": draw(st.sampled_from([0, 1]))},
            "encode": {
                "count": counts["encode"],
                "max_batch_items": draw(st.integers(1, 4)),
                "front_ends": draw(st.sampled_from([0, 0, 1, 2])),
                "router": draw(st.none() | _ROUTERS),
            },
            "prefill": {"count": counts["prefill"], "tp": draw(st.integers(1, 2)), "scheduler": draw(_schedulers())},
            "decode": {
                "count": counts["decode"],
                "router": draw(st.none() | _ROUTERS),
                "scheduler": draw(_schedulers()),
            },
        },
        "costs": draw(_costs()),
        "workload": draw(_workloads()),
        "seed": draw(st.integers(0, 1 << 16)),
    }
    _keep_to_known_ends(told["fleet"], told["costs"])
    if draw(st.booleans()):
        told["faults"] = draw(_faults(topology, counts))
    if draw(st.booleans()):
        told["clients"] = draw(_clients())
    return told


@st.composite
def text_files(draw: st.DrawFn) -> dict[str, Any]:
    """One file of text alone through engines that generate what they prefill, such as `epdsim.fleet.express` runs."""
    told = draw(scenario_files())
    for section in ("faults", "clients"):
        told.pop(section, None)
    told["fleet"] |= {"topology": "aggregated", **draw(_hand_overs("aggregated"))}
    told["workload"] = workload = draw(_text_workloads())
    largest = workload["shared_prefix_tokens"] + workload["text_tokens"]["high"] + workload["output_tokens"]["high"]
    block_size = draw(st.sampled_from([1, 4, 16, 128]))
    told["fleet"]["prefill"]["scheduler"] = {
        **draw(_schedulers()),
        **_PLAIN,
        "block_size": block_size,
        "num_gpu_blocks": 2 + draw(st.sampled_from([1, 2, 5, 50])) * largest // block_size,
        "scheduler_reserve_full_isl": draw(st.booleans()),
    }
    told["costs"]["body_link"].pop("sharing", None)
    return told


_PLAIN = {"async_scheduling": False, "speculative_method": "none", "num_speculative_tokens": 0}


@st.composite
def _text_workloads(draw: st.DrawFn) -> dict[str, Any]:
    arrivals = draw(
        st.sampled_from(
            [
                {"kind": "at-once"},
                {"kind": "constant", "rate_req_s": 100},
                *({"kind": "poisson", "rate_req_s": rate} for rate in (2, 20, 200)),
            ]
        )
    )
    return {
        **arrivals,
        "num_requests": draw(st.integers(1, 40)),
        "text_tokens": {"kind": "uniform", "low": 1, "high": draw(st.sampled_from([20, 200, 700]))},
        "output_tokens": {"kind": "uniform", "low": 1, "high": draw(st.sampled_from([1, 3, 60, 300]))},
        "shared_prefix_tokens": draw(st.sampled_from([0, 0, 40, 130])),
    }


def _keep_to_known_ends(fleet: dict[str, Any], costs: dict[str, Any]) -> None:
    """What a step reads, and layers that are pushed while a prompt is computed, cannot go over a fair line."""
    if fleet["ec"]["kind"] == "store" and "sharing" in costs["ec_link"]:
        costs["ec_link"]["sharing"] = costs["ec_link"]["sharing"].removeprefix("fair-")
    if fleet["orchestrator"] == "decode_first" and costs["kv_link"].get("sharing", "").startswith("fair"):
        costs["kv_layers"] = 1


@st.composite
def _clients(draw: st.DrawFn) -> dict[str, Any]:
    leave_ms = {"kind": "uniform", "low": 0, "high": draw(st.sampled_from([30, 300, 3000]))}
    return {
        "patience_ms": draw(st.sampled_from([None, 5, 100, 1000])),
        "leave_share": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "leave_ms": leave_ms,
    }


@st.composite
def _hand_overs(draw: st.DrawFn, topology: str) -> dict[str, Any]:
    """Orchestrators that a fleet can have, and how embeddings get to engines; bounds that are reached now and then."""
    encodes, hands_over = topology.startswith("e+"), topology.endswith("p+d")
    styles = ["per_item", "batched", *(["push"] if encodes else []), *(["decode_first"] if hands_over else [])]
    style = draw(st.sampled_from(styles))
    kind = "push" if style == "push" else draw(st.sampled_from(["store", "pull"]))
    long, short, hardly = 10_000, 40, 0.1
    ec = {
        "kind": kind,
        "producer_embeds": draw(st.sampled_from([30, 60, 200, 4096])),
        "consumer_embeds": draw(st.sampled_from([60, 200, 4096])),
        "wait_ms": draw(st.sampled_from([short, long])),
        "answer_ms": draw(st.sampled_from([hardly, short, long])),
        "read_ms": draw(st.sampled_from([hardly, short, long])),
        "lease_ms": draw(st.sampled_from([hardly, 1, long])),
        "keep_ms": draw(st.sampled_from([hardly, short, long])),
        "max_encodes": draw(st.integers(1, 3)),
    }
    return {"orchestrator": style, "ec": ec}


_DRAFTERS = [{"speculative_method": name, "num_speculative_tokens": 2} for name in ("ngram", "eagle", "draft_model")]


@st.composite
def _schedulers(draw: st.DrawFn) -> dict[str, Any]:
    """Small pools and tight budgets, of which the largest item fills one of the encoder's."""
    return {
        "num_gpu_blocks": draw(st.sampled_from([80, 120, 600])),
        "max_num_batched_tokens": draw(st.sampled_from([64, 300, 2048])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "encoder_cache_size": draw(st.sampled_from([256, 512])),
        "max_num_encoder_input_tokens": draw(st.sampled_from([256, 512])),
        "enable_prefix_caching": draw(st.booleans()),
        "model_runner": draw(st.sampled_from(["v1", "v2"])),
        "async_scheduling": draw(st.booleans()),
        "strip": draw(st.sampled_from(["admission", "deferred"])),
        **draw(st.sampled_from([{}, {}, *_DRAFTERS])),
    }


@st.composite
def _costs(draw: st.DrawFn) -> dict[str, Any]:
    def link() -> dict[str, Any]:
        rate = draw(st.sampled_from([1e7, 1e9, 5e10]))
        shared = {"sharing": draw(st.sampled_from(_SHARINGS))} if draw(st.booleans()) else {}
        return {
            "kind": "linear",
            "bandwidth_bytes_per_s": rate,
            "latency_ms": draw(st.sampled_from([0.0, 0.5])),
        } | shared

    fixed_ms = draw(st.sampled_from([0.5, 4.0, 20.0]))
    return {
        "lm": {"kind": "linear", "fixed_ms": fixed_ms, "prefill_token_ms": 0.02, "decode_request_ms": 0.05},
        "encode": {"kind": "linear", "fixed_ms": draw(st.sampled_from([1.0, 40.0])), "patch_ms": 0.01},
        "render": {"kind": "linear", "image_ms": 2, "megapixel_ms": 4, "fixed_ms": draw(st.sampled_from([0.0, 3.0]))},
        "hop_ms": draw(st.sampled_from([0.0, 0.5])),
        "body_link": link(),
        "ec_link": link(),
        "kv_link": link(),
        "kv_bytes_per_token": 36864,
        "kv_layers": draw(st.sampled_from([1, 36])),
    }


@st.composite
def _workloads(draw: st.DrawFn) -> dict[str, Any]:
    pictures = {"kind": "fixed", "size": [draw(st.sampled_from([112, 224])), 224]}
    return {
        "kind": "poisson",
        "rate_req_s": draw(st.sampled_from([2, 20, 200])),
        "num_requests": draw(st.integers(1, 24)),
        "text_tokens": {"kind": "uniform", "low": 1, "high": draw(st.sampled_from([20, 200]))},
        "output_tokens": {"kind": "uniform", "low": 1, "high": draw(st.sampled_from([3, 60]))},
        "images": {
            "count": {"kind": "histogram", "values": {0: 1, 1: draw(st.sampled_from([0, 2])), 2: 1}},
            "size": pictures,
            "reuse": {"probability": 0.6, "pool_size": draw(st.integers(1, 4))},
        },
    }


@st.composite
def _faults(draw: st.DrawFn, topology: str, counts: dict[str, int]) -> dict[str, Any]:
    pools = {"engine" if topology == "aggregated" else "prefill": counts["prefill"]}
    if topology.startswith("e+"):
        pools["encode"] = counts["encode"]
    if topology.endswith("p+d"):
        pools["decode"] = counts["decode"]
    names = [f"{pool}-{index}" for pool, count in pools.items() for index in range(count)]
    losses: list[dict[str, Any]] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        at_ms = draw(st.integers(0, _LAST_MS))
        losses.append(
            {"instance": name, "at_ms": at_ms, "back_ms": draw(st.sampled_from([None, at_ms + 1, at_ms + 700]))}
        )

    def span() -> dict[str, Any]:
        from_ms = draw(st.integers(0, _LAST_MS))
        return {"from_ms": from_ms, "until_ms": from_ms + draw(st.sampled_from([10, 900]))}

    slow = [
        {"instance": name, **span(), "factor": 5} for name in names if name.startswith("encode") and draw(st.booleans())
    ]
    links = [
        {"link": link, **span(), "factor": draw(st.sampled_from([None, 1.5, 10]))}
        for link in draw(st.lists(st.sampled_from(["body", "ec", "kv"]), unique=True))
    ]
    return {
        "losses": losses,
        "slow_encoders": slow,
        "links": links,
        "ec_evictions_ms": draw(st.lists(st.integers(0, _LAST_MS), max_size=2)),
        "max_retries": draw(st.integers(0, 2)),
        "detect_ms": draw(st.sampled_from([0, 50])),
        "give_up_ms": draw(st.sampled_from([0, 2000])),
    }
