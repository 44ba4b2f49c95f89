"""Every kind of workload as a scenario file states it: what all have in common, and what is particular to each."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload import (
    build_workload,
    write_jsonl,
)
from epdsim.workload.specs import resolve_path
from epdsim.workload.synthetic import PoissonSpec

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(
    f"2023-11-16 18:15:{second:02d}.25,{second + 1},3" for second in range(60)
)
MOONCAKE = "\n".join(
    f'{{"timestamp": {10 * i}, "input_length": {600 + i}, "output_length": {i + 1}, "hash_ids": [0, {i + 1}]}}'
    for i in range(60)
)
OWN = "arrival_s,prompt_tokens,output_tokens,images\n" + "\n".join(
    f"{i / 4},{i + 1},{i % 3 + 1},{i % 4}" for i in range(60)
)
TRACE = "0,2.0,1.5,Gamma,0.44,1.1\n600,0,0,,0,0\n1200,1.0,1.0,Weibull,1.0,1.0\n"
DATASET = (
    '{"0": {"text_tokens": "{5: 0.5, 7: 0.5}", "image_count": "{0: 0.25, 2: 0.75}", "image_tokens": "{100: 1.0}",'
    ' "audio_count": "{0: 1.0}", "audio_tokens": "{0: 1.0}", "output_tokens": "{0: 0.5, 9: 0.5}"},'
    ' "1200": {"text_tokens": "{0: 1.0}", "image_count": "{0: 1.0}", "image_tokens": "{0: 1.0}", "output_tokens": "{1: 1.0}"}}'
)
PROMPT = {
    "text_tokens": {"kind": "lognormal", "mean": 80, "stdev": 60},
    "output_tokens": {"kind": "uniform", "low": 0, "high": 9},
}
PARTS = [
    {"text_tokens": 20},
    {"modality": "image", "size": "480x640", "count": 3},
    {"text_tokens": 4, "content": "tail"},
]
OVERLAY = {
    "share": 0.4,
    "count": {"kind": "uniform", "low": 1, "high": 3},
    "size": "360p",
    "reuse": {"probability": 0.5, "pool_size": 4},
}

KINDS = {
    "azure": {"kind": "azure-csv", "path": "azure.csv"},
    "azure with pictures": {
        "kind": "azure-csv",
        "path": "azure.csv",
        "overlay": OVERLAY,
        "rate_scale": 3,
        "window_s": [5, 50],
    },
    "mooncake": {"kind": "mooncake-jsonl", "path": "mooncake.jsonl"},
    "mooncake with pictures": {
        "kind": "mooncake-jsonl",
        "path": "mooncake.jsonl",
        "overlay": {**OVERLAY, "position": "random"},
    },
    "jsonl": {"kind": "jsonl", "path": "mooncake.jsonl"},
    "csv": {"kind": "csv", "path": "own.csv", "image_size": OVERLAY["size"], "shared_prefix_tokens": 3},
    "servegen": {"kind": "servegen", "path": "set", "start_s": 300, "duration_s": 1400},
    "poisson": {"kind": "poisson", "rate_req_s": 5, "duration_s": 30, **PROMPT},
    "gamma": {"kind": "gamma", "rate_req_s": 5, "cv": 3, "num_requests": 1500, **PROMPT, "shared_prefix_tokens": 33},
    "weibull": {"kind": "weibull", "rate_req_s": 5, "shape": 0.5, "num_requests": 50, **PROMPT},
    "constant": {
        "kind": "constant",
        "rate_req_s": 5,
        "num_requests": 50,
        **PROMPT,
        "images": {
            "count": {"kind": "uniform", "low": 0, "high": 2},
            "size": "720p",
            "position": "random",
            "reuse": OVERLAY["reuse"],
        },
    },
    "bursts": {"kind": "bursts", "rate_req_s": 5, "on_s": 1, "off_s": 2, "num_requests": 50, **PROMPT},
    "at once": {"kind": "at-once", "num_requests": 20, **PROMPT, "text_tokens": 0, "images": {"size": "720p"}},
    "random-mm": {"kind": "random-mm", "num_prompts": 1100, "request_rate": 10, "random_range_ratio": 0.5},
    "sessions": {
        "kind": "sessions",
        "num_sessions": 5,
        "turns": 4,
        "frame": "640x640",
        "question_tokens": 5,
        "answer_tokens": 7,
    },
    "fixed": {
        "kind": "fixed",
        "requests": [{"parts": PARTS, "output_tokens": 2, "arrival_s": 3}, {"parts": PARTS[:1], "output_tokens": 1}],
    },
    "blis": {"kind": "blis-yaml", "path": "blis.yaml", "limit": 70, "answer_s": 0.5, "media_position": "random"},
    "repeat": {"kind": "repeat", "requests": [{"parts": PARTS, "output_tokens": 2}], "times": 3},
    "closed loop": {
        "kind": "closed-loop",
        "concurrency": 4,
        "requests": {"kind": "at-once", "num_requests": 9, **PROMPT},
    },
}

BLIS = """
version: "2"
aggregate_rate: 9
clients:
  - &one
    id: alone
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 5}}
    output_distribution: {type: exponential, params: {mean: 3}}
    prefix_group: g
  - {<<: *one, id: talks, reasoning: {multi_turn: {max_rounds: 3, context_growth: accumulate}}}
  - {<<: *one, id: looks, multimodal: {image_distribution: {type: constant, params: {value: 9}},
     image_count_distribution: {type: empirical, params: {1: 1, "2": 1}}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("workloads")
    (path / "azure.csv").write_text(AZURE)
    (path / "mooncake.jsonl").write_text(MOONCAKE)
    (path / "own.csv").write_text(OWN)
    (path / "blis.yaml").write_text(BLIS)
    (path / "set").mkdir()
    for client in range(3):
        (path / "set" / f"chunk-{client}-trace.csv").write_text(TRACE)
        (path / "set" / f"chunk-{client}-dataset.json").write_text(DATASET)
    return path


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS)
class TestEveryKind:
    def test_it_is_a_workload(self, spec, folder):
        workload = build_workload(spec, folder, 11)
        requests = list(workload)
        assert requests
        assert requests == list(workload), "it can be asked again"
        assert len({request.request_id for request in requests}) == len(requests)
        arrivals = [request.arrival_ms for request in requests]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] >= 0
        for request in requests:
            assert request.output_tokens >= 1
            assert type(request.output_tokens) is int
            assert request.parts
            for part in request.parts:
                if isinstance(part, TokenRun):
                    assert part.length >= 1
                    assert type(part.length) is int
                else:
                    assert (part.height and part.width) or part.num_tokens >= 1

    def test_it_survives_a_process_boundary(self, spec, folder):
        workload = build_workload(spec, folder, 11)
        assert list(pickle.loads(pickle.dumps(workload))) == list(workload)

    def test_it_can_be_written_down(self, spec, folder, tmp_path):
        workload = build_workload(spec, folder, 11)
        write_jsonl(workload, tmp_path / "out.jsonl")
        assert list(build_workload({"kind": "jsonl", "path": "out.jsonl"}, tmp_path, 0)) == list(workload)

    def test_an_unknown_key_is_refused_by_name(self, spec, folder):
        with pytest.raises(InputError, match="workload: rate_per_fortnight: is not a key that is known here"):
            build_workload({**spec, "rate_per_fortnight": 1}, folder, 11)


@pytest.mark.parametrize(
    "name", ["servegen", "poisson", "gamma", "weibull", "bursts", "constant", "random-mm", "azure with pictures"]
)
def test_another_seed_draws_another_workload(name, folder):
    first, second = (list(build_workload(KINDS[name], folder, seed)) for seed in (1, 2))
    assert first != second


class TestSynthetic:
    @pytest.mark.parametrize("name", ["poisson", "gamma", "constant"])
    def test_a_longer_workload_begins_with_the_shorter(self, name, folder):
        spec = {**KINDS[name], "duration_s": None, "num_requests": 2500}
        long = list(build_workload(spec, folder, 4))
        assert long[:70] == list(build_workload({**spec, "num_requests": 70}, folder, 4))
        assert len(long) == 2500

    def test_the_prefix_is_shared_and_the_rest_is_not(self, folder):
        first, second = islice(build_workload(KINDS["gamma"], folder, 1), 2)
        assert first.parts[0] == second.parts[0] == TokenRun("gamma/prefix", 0, 33)
        assert first.parts[1].content != second.parts[1].content

    def test_pictures_come_from_the_pool_as_often_as_stated(self, folder):
        spec = {"kind": "constant", "rate_req_s": 1, "num_requests": 4000, "text_tokens": 5, "output_tokens": 1}
        images = {
            "size": {"kind": "weighted", "sizes": [{"size": "360p"}, {"size": "720p"}]},
            "reuse": {"probability": 0.3, "pool_size": 10},
        }
        drawn = [request.media[0] for request in build_workload({**spec, "images": images}, folder, 1)]
        counts = Counter(drawn)
        pool = {picture: count for picture, count in counts.items() if "/pool/" in picture.content}
        assert len(pool) == 10, "one content has one size"
        assert sum(pool.values()) == pytest.approx(1200, abs=5 * math.sqrt(4000 * 0.3 * 0.7))
        assert max(pool.values()) < 2 * min(pool.values())
        assert all(count == 1 for picture, count in counts.items() if picture not in pool)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"rate_req_s": -2}, "rate_req_s = -2: .*greater than 0"),
            ({"rate_req_s": math.nan}, "rate_req_s = nan: .*finite"),
            ({"duration_s": None}, "the workload has no end: give num_requests or duration_s"),
            ({"text_tokens": 0}, "a prompt of 0 text tokens and no images is empty"),
            ({"text_tokens": -5}, "text_tokens = -5: .*greater than or equal to 0"),
            ({"output_tokens": 0}, "every request generates at least 1"),
            ({"images": {"size": [0, 640]}}, r"images.size = \[0, 640\]: a picture has at least 1 pixel"),
            ({"images": {}}, "images.size: is missing"),
            (
                {"images": {"size": "720p", "reuse": {"probability": 1.5, "pool_size": 4}}},
                "images.reuse.probability = 1.5",
            ),
            ({"kind": "poison"}, "kind = 'poison': must be one of .*'poisson'"),
            ({"kind": None}, "kind"),
        ],
    )
    def test_nonsense_is_refused_by_key(self, change, message, folder):
        with pytest.raises(InputError, match=message):
            build_workload({**KINDS["poisson"], **change}, folder, 1)

    def test_no_kind_and_a_negative_seed(self, folder):
        with pytest.raises(InputError, match="kind: is missing"):
            build_workload({}, folder, 1)
        with pytest.raises(InputError, match="seed -1: a seed is at least 0"):
            build_workload(KINDS["poisson"], folder, -1)


def test_an_unknown_key_in_a_mapping_given_twice_is_told(folder):
    part = {"text_tokens": 3, "contnet": "a"}
    requests = [{"parts": [part], "output_tokens": 1}, {"parts": [part], "output_tokens": 1}]
    with pytest.raises(InputError, match=r"parts\.0\.contnet: is not a key that is known here; did you mean 'content'"):
        build_workload({"kind": "fixed", "requests": requests}, folder, 1)


class TestPaths:
    def test_variables_and_defaults(self, monkeypatch):
        monkeypatch.setenv("EPDSIM_SHARED", "/data")
        monkeypatch.delenv("EPDSIM_NOWHERE", raising=False)
        assert resolve_path("${EPDSIM_SHARED}/a.csv", Path("/base")) == Path("/data/a.csv")
        assert resolve_path("${EPDSIM_NOWHERE:-../x}/a.csv", Path("/base")) == Path("/base/../x/a.csv")
        assert resolve_path("a.csv", Path("/base")) == Path("/base/a.csv")

    @pytest.mark.parametrize(
        ("kind", "rule"),
        [("azure-csv", "no such file"), ("blis-yaml", "no such file"), ("servegen", "no such folder or archive")],
    )
    def test_data_that_do_not_come_along_are_told_with_the_variable(self, monkeypatch, tmp_path, kind, rule):
        monkeypatch.delenv("EPDSIM_SHARED", raising=False)
        for path, remedy in (
            (
                "${EPDSIM_SHARED:-none}/a",
                r"fetch it and name the folder in EPDSIM_SHARED \(docs/how-to/replay-a-public-trace\.md",
            ),
            ("none/a", "check the path; a relative one starts at the scenario file"),
        ):
            with pytest.raises(InputError, match=f"{tmp_path}/none/a': {rule}; {remedy}"):
                build_workload({"kind": kind, "path": path}, tmp_path, 1)
        with pytest.raises(InputError, match="the environment variable EPDSIM_NOWHERE is not set; set it, or write"):
            resolve_path("${EPDSIM_NOWHERE}/a.csv", Path("/base"))

    def test_a_missing_trace_is_found_when_the_workload_is_built(self, folder):
        for kind in ("azure-csv", "mooncake-jsonl", "jsonl"):
            with pytest.raises(InputError, match="no such file"):
                build_workload({"kind": kind, "path": "nowhere"}, folder, 1)

    @pytest.mark.parametrize("window", [[5, 5], [9, 3], [-1, 4], [0, math.inf], [1]])
    def test_windows_that_are_none(self, window, folder):
        with pytest.raises(InputError, match="window_s"):
            build_workload({**KINDS["azure"], "window_s": window}, folder, 1)


def test_twice_the_load_is_the_same_requests_twice_as_fast() -> None:
    spec = PoissonSpec(rate_req_s=5, num_requests=20, text_tokens=10, output_tokens=3)
    usual = spec.build(Path(), 3)
    fast = usual.at_load(2)
    assert [replace(one, arrival_ms=2 * one.arrival_ms) for one in fast] == list(usual)
    assert "2 times the load" in fast.assumptions
