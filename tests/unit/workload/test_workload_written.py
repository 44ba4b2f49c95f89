"""Requests written down, conversations, and closed loops."""

from __future__ import annotations

from itertools import pairwise

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.workload import ClosedLoop, MediaRef, build_workload

PARTS = [
    {"text_tokens": 20},
    {"modality": "image", "size": "480x640", "count": 3},
    {"text_tokens": 4, "content": "tail"},
]
FIXED = {
    "kind": "fixed",
    "requests": [{"parts": PARTS, "output_tokens": 2, "arrival_s": 3}, {"parts": PARTS[:1], "output_tokens": 1}],
}
REPEAT = {"kind": "repeat", "requests": [{"parts": PARTS, "output_tokens": 2}], "times": 3}
SESSIONS = {
    "kind": "sessions",
    "num_sessions": 5,
    "turns": 4,
    "frame": "640x640",
    "question_tokens": 5,
    "answer_tokens": 7,
}
AT_ONCE = {"kind": "at-once", "num_requests": 9, "text_tokens": 80, "output_tokens": 9}
LOOP = {"kind": "closed-loop", "concurrency": 4, "requests": AT_ONCE}


def text_of(request):
    """The text of a prompt in its one form."""
    return RunPrompt(request.text).runs


class TestWrittenDown:
    def test_parts_keep_their_order_and_content_is_new_unless_named(self, tmp_path):
        second, first = build_workload(FIXED, tmp_path, 1)
        assert (first.request_id, first.arrival_ms, second.arrival_ms) == ("request-0", 3000.0, 0.0)
        assert first.parts[0] == TokenRun("request-0/0", 0, 20)
        assert [picture.content for picture in first.parts[1:4]] == ["request-0/1/0", "request-0/1/1", "request-0/1/2"]
        assert first.parts[4] == TokenRun("tail", 0, 4)
        assert second.parts[0].content == "request-1/0"

    def test_one_named_picture_again_and_again(self, tmp_path):
        parts = [{"modality": "image", "size": [8, 8], "count": 26, "content": "cat"}]
        (request,) = build_workload({"kind": "fixed", "requests": [{"parts": parts, "output_tokens": 1}]}, tmp_path, 1)
        assert request.parts == (MediaRef("cat", height=8, width=8),) * 26

    def test_repeats_are_identical_but_for_id_and_time(self, tmp_path):
        sends = list(build_workload(REPEAT, tmp_path, 1))
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
    def test_a_part_that_is_none(self, part, message, tmp_path):
        with pytest.raises(InputError, match=message):
            build_workload({"kind": "fixed", "requests": [{"parts": [part], "output_tokens": 1}]}, tmp_path, 1)

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
    def test_repeats_that_are_none(self, change, message, tmp_path):
        with pytest.raises(InputError, match=message):
            build_workload({**REPEAT, **change}, tmp_path, 1)


class TestSessions:
    spec = SESSIONS

    def turns(self, tmp_path, **change):
        return [
            r for r in build_workload({**self.spec, "turns": 16, **change}, tmp_path, 1) if r.session_id == "session-0"
        ]

    def test_turn_t_sees_t_old_frames_and_a_fresh_one(self, tmp_path):
        turns = self.turns(tmp_path)
        assert [len(turn.media) for turn in turns] == list(range(1, 17))
        for before, after in pairwise(turns):
            assert after.media[:-1] == before.media

    def test_interleaved_prompts_begin_with_the_prompt_before_and_its_answer(self, tmp_path):
        turns = self.turns(tmp_path, system_tokens=40)
        for before, after in pairwise(turns):
            assert after.parts[: len(before.parts)] == before.parts
            assert after.parts[len(before.parts)].length == before.output_tokens
            assert len(after.parts) == len(before.parts) + 3

    def test_frames_first_keeps_frames_in_front_of_the_transcript(self, tmp_path):
        last = self.turns(tmp_path, layout="frames-first")[-1]
        assert [isinstance(part, MediaRef) for part in last.parts] == [True] * 16 + [False] * 31

    def test_the_window_leaves_out_the_oldest(self, tmp_path):
        last = self.turns(tmp_path, max_frames=4)[-1]
        assert [picture.content for picture in last.media] == [f"session-0/frame{turn}" for turn in (12, 13, 14, 15)]
        assert len(text_of(last)) == 31

    def test_conversations_interleave_in_time(self, tmp_path):
        spec = {**self.spec, "turn_interval_s": 1.5}
        order = [(r.session_id, r.arrival_ms) for r in build_workload(spec, tmp_path, 1)]
        assert order[:5] == [
            ("session-0", 0.0),
            ("session-1", 1000.0),
            ("session-0", 1500.0),
            ("session-2", 2000.0),
            ("session-1", 2500.0),
        ]


class TestClosedLoop:
    def test_concurrency_goes_with_the_requests(self, tmp_path):
        workload = build_workload(LOOP, tmp_path, 1)
        loop = workload.closed_loop
        assert isinstance(loop, ClosedLoop)
        assert (loop.concurrency, len(list(loop.requests))) == (4, 9)
        assert "closed loop of 4" in workload.assumptions
        bench = build_workload({"kind": "random-mm", "max_concurrency": 8, "request_rate": 5}, tmp_path, 1)
        assert (bench.concurrency, bench.keeps_arrivals) == (8, True)
        assert not workload.keeps_arrivals
        paced = build_workload(LOOP | {"keeps_arrivals": True}, tmp_path, 1)
        assert paced.closed_loop is not None
        assert paced.closed_loop.keeps_arrivals
        assert "none sent before its arrival time" in paced.assumptions
        assert build_workload(AT_ONCE, tmp_path, 1).closed_loop is None

    def test_a_loop_of_loops_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"requests\.kind = 'closed-loop': must be one of"):
            build_workload({"kind": "closed-loop", "concurrency": 1, "requests": LOOP}, tmp_path, 1)
