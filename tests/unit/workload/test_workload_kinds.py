"""Every kind of workload as a scenario file states it: what all have in common, and what is particular to each."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.workload import (
    ClosedLoop,
    MediaRef,
    OverlaySpec,
    WorkloadRequest,
    build_workload,
    overlay_images,
    write_jsonl,
)
from epdsim.workload.specs import resolve_path

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(
    f"2023-11-16 18:15:{second:02d}.25,{second + 1},3" for second in range(60)
)
MOONCAKE = "\n".join(
    f'{{"timestamp": {10 * i}, "input_length": {600 + i}, "output_length": {i + 1}, "hash_ids": [0, {i + 1}]}}'
    for i in range(60)
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
    "repeat": {"kind": "repeat", "requests": [{"parts": PARTS, "output_tokens": 2}], "times": 3},
    "closed loop": {
        "kind": "closed-loop",
        "concurrency": 4,
        "requests": {"kind": "at-once", "num_requests": 9, **PROMPT},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("workloads")
    (path / "azure.csv").write_text(AZURE)
    (path / "mooncake.jsonl").write_text(MOONCAKE)
    (path / "set").mkdir()
    for client in range(3):
        (path / "set" / f"chunk-{client}-trace.csv").write_text(TRACE)
        (path / "set" / f"chunk-{client}-dataset.json").write_text(DATASET)
    return path


def text_of(request):
    """The text of a prompt in its one form."""
    return RunPrompt([part for part in request.parts if isinstance(part, TokenRun)]).runs


def media_of(request):
    return [part for part in request.parts if isinstance(part, MediaRef)]


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
        drawn = [media_of(request)[0] for request in build_workload({**spec, "images": images}, folder, 1)]
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


class TestWrittenDown:
    def test_parts_keep_their_order_and_content_is_new_unless_named(self, folder):
        second, first = build_workload(KINDS["fixed"], folder, 1)
        assert (first.request_id, first.arrival_ms, second.arrival_ms) == ("request-0", 3000.0, 0.0)
        assert first.parts[0] == TokenRun("request-0/0", 0, 20)
        assert [picture.content for picture in first.parts[1:4]] == ["request-0/1/0", "request-0/1/1", "request-0/1/2"]
        assert first.parts[4] == TokenRun("tail", 0, 4)
        assert second.parts[0].content == "request-1/0"

    def test_one_named_picture_again_and_again(self, folder):
        parts = [{"modality": "image", "size": [8, 8], "count": 26, "content": "cat"}]
        (request,) = build_workload({"kind": "fixed", "requests": [{"parts": parts, "output_tokens": 1}]}, folder, 1)
        assert request.parts == (MediaRef("cat", height=8, width=8),) * 26

    def test_repeats_are_identical_but_for_id_and_time(self, folder):
        sends = list(build_workload(KINDS["repeat"], folder, 1))
        assert [(send.request_id, send.arrival_ms, send.slo_class) for send in sends] == [
            ("request-0#1", 0.0, "warm-up"),
            ("request-0#2", 60_000.0, ""),
            ("request-0#3", 120_000.0, ""),
        ]
        assert sends[0].parts == sends[1].parts == sends[2].parts

    @pytest.mark.parametrize(
        ("part", "message"),
        [
            ({}, "either text_tokens or a modality"),
            ({"text_tokens": 5, "modality": "image"}, "either text_tokens or a modality"),
            ({"text_tokens": 5, "size": "720p"}, "a part of text has no size"),
            ({"text_tokens": 0}, "text_tokens = 0"),
            ({"modality": "image"}, "the image needs a size"),
            ({"modality": "audio"}, "the audio needs a duration_s"),
            ({"modality": "image", "size": "0x4"}, "at least 1 pixel"),
            ({"modality": "image", "size": "4x4", "count": 0}, "count = 0"),
            ({"modality": "image", "size": "4x4", "start": 3}, "only a part of text has a start"),
        ],
    )
    def test_a_part_that_is_none(self, part, message, folder):
        with pytest.raises(InputError, match=message):
            build_workload({"kind": "fixed", "requests": [{"parts": [part], "output_tokens": 1}]}, folder, 1)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"times": 1}, "1 warmups of 1 times leave nothing to measure"),
            ({"requests": [{"parts": PARTS, "output_tokens": 1, "arrival_s": 2}]}, "have no arrival_s"),
            ({"requests": [{"id": "a", "parts": PARTS, "output_tokens": 1}] * 2}, "two requests have the id 'a'"),
            ({"requests": []}, "requests"),
            ({"gap_s": 0}, "gap_s = 0"),
        ],
    )
    def test_repeats_that_are_none(self, change, message, folder):
        with pytest.raises(InputError, match=message):
            build_workload({**KINDS["repeat"], **change}, folder, 1)


class TestSessions:
    spec = KINDS["sessions"]

    def turns(self, folder, **change):
        return [
            r for r in build_workload({**self.spec, "turns": 16, **change}, folder, 1) if r.session_id == "session-0"
        ]

    def test_turn_t_sees_t_old_frames_and_a_fresh_one(self, folder):
        turns = self.turns(folder)
        assert [len(media_of(turn)) for turn in turns] == list(range(1, 17))
        for before, after in pairwise(turns):
            assert media_of(after)[:-1] == media_of(before)

    def test_interleaved_prompts_begin_with_the_prompt_before_and_its_answer(self, folder):
        turns = self.turns(folder, system_tokens=40)
        for before, after in pairwise(turns):
            assert after.parts[: len(before.parts)] == before.parts
            assert after.parts[len(before.parts)].length == before.output_tokens
            assert len(after.parts) == len(before.parts) + 3

    def test_frames_first_keeps_frames_in_front_of_the_transcript(self, folder):
        last = self.turns(folder, layout="frames-first")[-1]
        assert [isinstance(part, MediaRef) for part in last.parts] == [True] * 16 + [False] * 31

    def test_the_window_leaves_out_the_oldest(self, folder):
        last = self.turns(folder, max_frames=4)[-1]
        assert [picture.content for picture in media_of(last)] == [
            f"session-0/frame{turn}" for turn in (12, 13, 14, 15)
        ]
        assert len(text_of(last)) == 31

    def test_conversations_interleave_in_time(self, folder):
        spec = {**self.spec, "turn_interval_s": 1.5}
        order = [(r.session_id, r.arrival_ms) for r in build_workload(spec, folder, 1)]
        assert order[:5] == [
            ("session-0", 0.0),
            ("session-1", 1000.0),
            ("session-0", 1500.0),
            ("session-2", 2000.0),
            ("session-1", 2500.0),
        ]


class TestRandomMm:
    """Option semantics of vLLM 0.32's random-mm; its defaults as logged in vLLM issue 29248."""

    def test_the_defaults_of_vllm_bench(self, folder):
        requests = list(build_workload({"kind": "random-mm"}, folder, 1))
        assert len(requests) == 1000
        assert {(r.arrival_ms, r.output_tokens, text_of(r)[0].length, len(media_of(r))) for r in requests} == {
            (0.0, 128, 1024, 1)
        }
        sizes = Counter((m.height, m.width, m.modality) for r in requests for m in media_of(r))
        assert set(sizes) == {(256, 256, "image"), (720, 1280, "image")}
        assert sizes[256, 256, "image"] == pytest.approx(500, abs=80)

    def test_ranges_include_floor_and_ceiling(self, folder):
        spec = {
            "kind": "random-mm",
            "num_prompts": 5000,
            "random_input_len": 11,
            "random_output_len": 5,
            "random_range_ratio": 0.25,
            "random_mm_base_items_per_request": 3,
            "random_mm_num_mm_items_range_ratio": 0.5,
        }
        requests = list(build_workload(spec, folder, 1))
        assert {text_of(r)[0].length for r in requests} == set(range(8, 15))
        assert {r.output_tokens for r in requests} == set(range(3, 8))
        assert {len(media_of(r)) for r in requests} == {1, 2, 3, 4, 5}

    def test_a_modality_at_its_limit_is_left_out(self, folder):
        spec = {
            "kind": "random-mm",
            "num_prompts": 300,
            "random_mm_base_items_per_request": 4,
            "random_mm_bucket_config": {"(256, 256, 1)": 0.1, "(720, 1280, 16)": 0.9},
            "random_mm_limit_mm_per_prompt": {"image": 9, "video": 2},
        }
        counts = Counter(
            tuple(sorted(Counter(m.modality for m in media_of(r)).items())) for r in build_workload(spec, folder, 1)
        )
        assert all(dict(key).get("video", 0) <= 2 and sum(dict(key).values()) == 4 for key in counts)
        assert counts[("image", 2), ("video", 2)] > 200

    def test_the_last_request_arrives_at_count_over_rate(self, folder):
        for burstiness in (0.3, 1.0, math.inf):
            spec = {"kind": "random-mm", "num_prompts": 500, "request_rate": 20, "burstiness": burstiness}
            arrivals = [r.arrival_ms for r in build_workload(spec, folder, 1)]
            assert arrivals[-1] == pytest.approx(25_000)
        assert arrivals == pytest.approx([50.0 * (index + 1) for index in range(500)])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"random_mm_limit_mm_per_prompt": {"video": 1}}, "has no image"),
            ({"random_mm_base_items_per_request": 300}, "allows 255 items, and at least 300"),
            ({"random_mm_bucket_config": {"(256, 256, 1)": -1}}, "greater than or equal to 0"),
            ({"random_mm_bucket_config": {"(256, 256, 1)": 0}}, "not all 0"),
            ({"request_rate": math.nan}, "request_rate = nan"),
            ({"random_range_ratio": 1.0}, "random_range_ratio"),
            ({"random_input_len": 0, "random_mm_base_items_per_request": 0}, "raise random_input_len"),
        ],
    )
    def test_nonsense_is_refused(self, change, message, folder):
        with pytest.raises(InputError, match=message):
            build_workload({"kind": "random-mm", **change}, folder, 1)


class TestClosedLoop:
    def test_concurrency_goes_with_the_requests(self, folder):
        workload = build_workload(KINDS["closed loop"], folder, 1)
        loop = workload.closed_loop
        assert isinstance(loop, ClosedLoop)
        assert (loop.concurrency, len(list(loop.requests))) == (4, 9)
        assert "closed loop of 4" in workload.assumptions
        bench = build_workload({"kind": "random-mm", "max_concurrency": 8, "request_rate": 5}, folder, 1)
        assert (bench.concurrency, bench.keeps_arrivals) == (8, True)
        assert not workload.keeps_arrivals
        paced = build_workload(KINDS["closed loop"] | {"keeps_arrivals": True}, folder, 1)
        assert paced.closed_loop is not None
        assert paced.closed_loop.keeps_arrivals
        assert "none sent before its arrival time" in paced.assumptions
        assert build_workload(KINDS["poisson"], folder, 1).closed_loop is None

    def test_a_loop_of_loops_is_refused(self, folder):
        with pytest.raises(InputError, match=r"requests\.kind = 'closed-loop': must be one of"):
            build_workload({"kind": "closed-loop", "concurrency": 1, "requests": KINDS["closed loop"]}, folder, 1)


class TestOverlay:
    def requests(self, count=5000):
        return [
            WorkloadRequest(f"r{i}", float(i), (TokenRun("shared", 0, 50), TokenRun(f"r{i}", 0, 9)), 3)
            for i in range(count)
        ]

    def spec(self, **change):
        return OverlaySpec.model_validate({**OVERLAY, **change})

    def test_a_stated_share_gets_pictures_and_nothing_else_changes(self):
        plain = self.requests()
        laid = list(overlay_images(plain, self.spec(), 5))
        assert sum(bool(media_of(r)) for r in laid) == pytest.approx(2000, abs=5 * math.sqrt(5000 * 0.4 * 0.6))
        for before, after in zip(plain, laid, strict=True):
            assert text_of(after) == text_of(before)
            assert (after.arrival_ms, after.request_id, after.output_tokens) == (
                before.arrival_ms,
                before.request_id,
                before.output_tokens,
            )
        counts = Counter(len(media_of(r)) for r in laid if media_of(r))
        assert set(counts) == {1, 2, 3}
        pictures = [picture for r in laid for picture in media_of(r)]
        pooled = [picture for picture in pictures if "/pool/" in picture.content]
        assert len(pooled) / len(pictures) == pytest.approx(0.5, abs=0.05)
        assert len(set(pooled)) == 4

    def test_what_a_request_gets_does_not_depend_on_its_neighbours(self):
        laid = {r.request_id: r for r in overlay_images(self.requests(), self.spec(), 5)}
        for part in (self.requests()[:7], self.requests()[100:130], self.requests()[::-97]):
            assert [laid[r.request_id] for r in part] == list(overlay_images(part, self.spec(), 5))

    @pytest.mark.parametrize(("position", "place"), [("start", 0), ("end", 2)])
    def test_positions(self, position, place):
        spec = self.spec(share=1, count=1, position=position)
        assert all(isinstance(r.parts[place], MediaRef) for r in overlay_images(self.requests(50), spec, 5))

    def test_random_positions_cover_the_text(self):
        spec = self.spec(share=1, count=1, position="random")
        offsets = set()
        for request in overlay_images(self.requests(3000), spec, 5):
            offset = 0
            for part in request.parts:
                if isinstance(part, MediaRef):
                    offsets.add(offset)
                else:
                    offset += part.length
        assert offsets == set(range(60))

    def test_its_own_seed_goes_first_and_is_stated(self, folder):
        own = self.spec(seed=9)
        assert list(overlay_images(self.requests(50), own, 1)) == list(overlay_images(self.requests(50), own, 2))
        assert list(overlay_images(self.requests(50), self.spec(), 1)) != list(
            overlay_images(self.requests(50), self.spec(), 2)
        )
        workload = build_workload({**KINDS["azure"], "overlay": {**OVERLAY, "seed": 9}}, folder, 1)
        assert (
            "image overlay: share 0.4 of requests, count uniform (low 1, high 3), size 360x640, 0.5 of them from a pool of 4"
            in workload.assumptions
        )
        assert "seed 9" in workload.assumptions

    def test_pictures_of_a_run_come_with_it_wherever_it_stands(self):
        spec = self.spec(per="run", share=0.5, count=2)
        runs = [TokenRun(("block", index), 0, 16) for index in range(40)]
        first, second = overlay_images(
            [WorkloadRequest("a", 0.0, tuple(runs), 1), WorkloadRequest("b", 1.0, tuple(runs[:30]), 1)], spec, 5
        )
        assert second.parts == first.parts[: len(second.parts)]
        owners = [before for before, part in pairwise(first.parts) if isinstance(part, MediaRef)]
        assert 2 * 10 <= len(owners) <= 2 * 30
        assert text_of(first) == tuple(runs)
        assert "behind their run" in spec.statement(5)

    def test_shares_of_none_and_all(self):
        plain = self.requests(40)
        assert list(overlay_images(plain, self.spec(share=0), 5)) == plain
        assert all(media_of(r) for r in overlay_images(plain, self.spec(share=1), 5))

    def test_media_are_not_laid_over_media(self):
        with pytest.raises(InputError, match="request 'a': has media already"):
            list(overlay_images([WorkloadRequest("a", 0.0, (MediaRef("x", num_tokens=1),), 1)], self.spec(share=1), 5))


class TestPaths:
    def test_variables_and_defaults(self, monkeypatch):
        monkeypatch.setenv("EPDSIM_SHARED", "/data")
        monkeypatch.delenv("EPDSIM_NOWHERE", raising=False)
        assert resolve_path("${EPDSIM_SHARED}/a.csv", Path("/base")) == Path("/data/a.csv")
        assert resolve_path("${EPDSIM_NOWHERE:-../x}/a.csv", Path("/base")) == Path("/base/../x/a.csv")
        assert resolve_path("a.csv", Path("/base")) == Path("/base/a.csv")
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
