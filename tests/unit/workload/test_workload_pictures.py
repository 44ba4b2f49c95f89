"""Pictures of vllm bench's `random-mm`, and pictures laid over traces of text."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.workload import MediaRef, OverlaySpec, WorkloadRequest, build_workload, overlay_images

OVERLAY = {
    "share": 0.4,
    "count": {"kind": "uniform", "low": 1, "high": 3},
    "size": "360p",
    "reuse": {"probability": 0.5, "pool_size": 4},
}


def text_of(request):
    """The text of a prompt in its one form."""
    return RunPrompt(request.text).runs


class TestRandomMm:
    """Option semantics of vLLM 0.32's random-mm; its defaults as logged in vLLM issue 29248."""

    def test_the_defaults_of_vllm_bench(self, tmp_path):
        requests = list(build_workload({"kind": "random-mm"}, tmp_path, 1))
        assert len(requests) == 1000
        assert {(r.arrival_ms, r.output_tokens, text_of(r)[0].length, len(r.media)) for r in requests} == {
            (0.0, 128, 1024, 1)
        }
        sizes = Counter((m.height, m.width, m.modality) for r in requests for m in r.media)
        assert set(sizes) == {(256, 256, "image"), (720, 1280, "image")}
        assert sizes[256, 256, "image"] == pytest.approx(500, abs=80)

    def test_ranges_include_floor_and_ceiling(self, tmp_path):
        spec = {
            "kind": "random-mm",
            "num_prompts": 5000,
            "random_input_len": 11,
            "random_output_len": 5,
            "random_range_ratio": 0.25,
            "random_mm_base_items_per_request": 3,
            "random_mm_num_mm_items_range_ratio": 0.5,
        }
        requests = list(build_workload(spec, tmp_path, 1))
        assert {text_of(r)[0].length for r in requests} == set(range(8, 15))
        assert {r.output_tokens for r in requests} == set(range(3, 8))
        assert {len(r.media) for r in requests} == {1, 2, 3, 4, 5}

    def test_a_modality_at_its_limit_is_left_out(self, tmp_path):
        spec = {
            "kind": "random-mm",
            "num_prompts": 300,
            "random_mm_base_items_per_request": 4,
            "random_mm_bucket_config": {"(256, 256, 1)": 0.1, "(720, 1280, 16)": 0.9},
            "random_mm_limit_mm_per_prompt": {"image": 9, "video": 2},
        }
        counts = Counter(
            tuple(sorted(Counter(m.modality for m in r.media).items())) for r in build_workload(spec, tmp_path, 1)
        )
        assert all(dict(key).get("video", 0) <= 2 and sum(dict(key).values()) == 4 for key in counts)
        assert counts[("image", 2), ("video", 2)] > 200

    def test_the_last_request_arrives_at_count_over_rate(self, tmp_path):
        for burstiness in (0.3, 1.0, math.inf):
            spec = {"kind": "random-mm", "num_prompts": 500, "request_rate": 20, "burstiness": burstiness}
            arrivals = [r.arrival_ms for r in build_workload(spec, tmp_path, 1)]
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
    def test_nonsense_is_refused(self, change, message, tmp_path):
        with pytest.raises(InputError, match=message):
            build_workload({"kind": "random-mm", **change}, tmp_path, 1)


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
        assert sum(bool(r.media) for r in laid) == pytest.approx(2000, abs=5 * math.sqrt(5000 * 0.4 * 0.6))
        for before, after in zip(plain, laid, strict=True):
            assert text_of(after) == text_of(before)
            assert (after.arrival_ms, after.request_id, after.output_tokens) == (
                before.arrival_ms,
                before.request_id,
                before.output_tokens,
            )
        counts = Counter(len(r.media) for r in laid if r.media)
        assert set(counts) == {1, 2, 3}
        pictures = [picture for r in laid for picture in r.media]
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

    def test_its_own_seed_goes_first_and_is_stated(self, tmp_path):
        own = self.spec(seed=9)
        assert list(overlay_images(self.requests(50), own, 1)) == list(overlay_images(self.requests(50), own, 2))
        assert list(overlay_images(self.requests(50), self.spec(), 1)) != list(
            overlay_images(self.requests(50), self.spec(), 2)
        )
        (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:00.25,1,3")
        workload = build_workload(
            {"kind": "azure-csv", "path": "a.csv", "overlay": {**OVERLAY, "seed": 9}}, tmp_path, 1
        )
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
        assert all(r.media for r in overlay_images(plain, self.spec(share=1), 5))

    def test_media_are_not_laid_over_media(self):
        with pytest.raises(InputError, match="request 'a': has media already"):
            list(overlay_images([WorkloadRequest("a", 0.0, (MediaRef("x", num_tokens=1),), 1)], self.spec(share=1), 5))
