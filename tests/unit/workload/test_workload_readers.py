"""Readers of public traces and of one's own CSV: samples in the published forms, and what they refuse in which words."""

from __future__ import annotations

import json

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.core.rules import IDEAL
from epdsim.fleet import Renderer
from epdsim.media import family
from epdsim.workload import MediaRef, WorkloadRequest, build_workload
from epdsim.workload.detect import detect_format, is_blis_yaml

BURST_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BLIS = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,"
    "output_tokens,text_tokens,image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,server_input_tokens,"
    "arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,num_chunks,status,error_message,finish_reason\n"
)
BLIS_HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"


def blis(request_id, arrival_us, tokens, *, session="", group="", prefix=0, image=0, server=0, slo="standard"):
    inputs, outputs = tokens
    return (
        f"{request_id},c1,t1,{slo},{session},0,{group},{prefix},false,{inputs},{outputs},{inputs - image},{image},0,0,0.0,,0,"
        f"{server},{arrival_us},{arrival_us},0,0,0,ok,,\n"
    )


@pytest.fixture
def read(tmp_path):
    """Writes a file, sees that its form is found out, and reads it."""

    def run(kind, text, name="trace.txt", **keys):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert detect_format(path) == kind
        return list(build_workload({"kind": kind, "path": name, **keys}, tmp_path, 1))

    return run


def refused(read, kind, text, words, **keys):
    with pytest.raises(InputError, match=words) as raised:
        read(kind, text, **keys)
    return str(raised.value)


class TestBurstGpt:
    def test_seconds_count_from_the_first_line_and_failures_are_left_out(self, read):
        rows = (
            "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,7,0,7,API log\n118,GPT-4,417,276,693,Conversation log\n"
        )
        first, second = read("burstgpt-csv", BURST_1 + rows)
        assert first == WorkloadRequest("burstgpt-2", 0.0, (TokenRun("burstgpt-2", 0, 472),), 18)
        assert (second.request_id, second.arrival_ms, second.output_tokens) == ("burstgpt-4", 113_000.0, 276)
        assert len(read("burstgpt-csv", BURST_1 + rows, zero_tokens="one")) == 3
        assert "trace.txt, line 3" in refused(
            read, "burstgpt-csv", BURST_1 + rows, "has 7 request tokens and 0 response", zero_tokens="refuse"
        )

    def test_the_third_file_has_sessions_and_late_seconds(self, read):
        rows = "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.5,1722ac82,2,ChatGPT,36,29,65,API log\n"
        requests = read("burstgpt-csv", BURST_3 + rows)
        assert [(one.arrival_ms, one.session_id) for one in requests] == [(0.0, "1722ac82"), (51_500.0, "1722ac82")]

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ("x,m,1,2,3,l", "needs seconds and whole numbers of tokens"),
            ("nan,m,1,2,3,l", "has the time nan"),
            ("6,m,1.5,2,3,l", "needs seconds and whole numbers"),
            ("4,m,1,2,3,l", "time goes back by 1000 ms"),
            ("6,m,1,2", "has 4 cells where the header has 6"),
            ("6,m,-1,2,1,l", "has -1 request tokens"),
        ],
    )
    def test_bad_lines(self, read, row, words):
        told = refused(read, "burstgpt-csv", f"{BURST_1}5,m,1,2,3,l\n{row}\n", words)
        assert "trace.txt, line 3" in told


class TestBailian:
    def line(self, **change):
        usual = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132}
        return json.dumps({**usual, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 13148]} | change) + "\n"

    def test_blocks_of_sixteen_and_conversations_by_their_first_chat(self, read):
        follow = self.line(chat_id=7, parent_chat_id=159, timestamp=62.5, hash_ids=[1089, 1090, 5], turn=2)
        third = self.line(chat_id=9, parent_chat_id=7, timestamp=70, turn=3, type="image")
        orphan = self.line(chat_id=11, parent_chat_id=3, timestamp=71, turn=2)
        first, second, *rest = read("bailian-jsonl", self.line() + follow + third + orphan)
        assert first.arrival_ms == 61_114.0
        blocks = [TokenRun(("bailian", block), 0, length) for block, length in ((1089, 16), (1090, 16), (13148, 8))]
        assert first.parts == tuple(blocks)
        assert second.parts[:2] == first.parts[:2]
        assert [one.session_id for one in (first, second, *rest)] == ["chat-159", "chat-159", "chat-159", "chat-3"]
        only = read("bailian-jsonl", self.line() + follow + third, types=["image"])
        assert [(one.request_id, one.session_id) for one in only] == [("chat-9", "chat-159")]

    def test_a_window_knows_the_conversations_that_began_before_it(self, read):
        follow = self.line(chat_id=7, parent_chat_id=159, timestamp=62.5, turn=2)
        (only,) = read("bailian-jsonl", self.line() + follow, window_s=[62, 70])
        assert (only.arrival_ms, only.session_id) == (500.0, "chat-159")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"hash_ids": [1, 2, 3, 4]}, "has 4 hash_ids where 40 tokens fill 3 blocks of 16"),
            ({"output_length": 0}, "has input_length 40 and output_length 0"),
            ({"timestamp": -1}, "has timestamp -1"),
            ({"chat_id": "x"}, "is not a record of the trace"),
        ],
    )
    def test_bad_lines(self, read, change, words):
        assert "trace.txt, line 2" in refused(
            read, "bailian-jsonl", self.line(timestamp=0) + self.line(**change), words
        )


class TestBlis:
    def test_prefixes_are_shared_and_modalities_are_items(self, read):
        first, second = read(
            "blis-csv",
            BLIS + blis(0, 0, (10, 5), group="g", prefix=32) + blis(1, 1500, (300, 6), group="g", prefix=32, image=200),
        )
        assert first.parts == (TokenRun(("blis-prefix", "g"), 0, 32), TokenRun("blis-0", 0, 10))
        assert second.parts == (
            TokenRun(("blis-prefix", "g"), 0, 32),
            MediaRef("blis-1/image", num_tokens=200),
            TokenRun("blis-1", 0, 100),
        )
        assert (second.arrival_ms, second.output_tokens, second.slo_class) == (1.5, 6, "standard")

    def test_what_the_server_counted_goes_first_without_a_group(self, read):
        (one,) = read("blis-csv", BLIS + blis(0, 0, (10, 5), server=14))
        assert one.parts == (TokenRun("blis-0", 0, 14),)

    def test_rounds_that_state_what_is_new_are_put_behind_what_was_said(self, read, tmp_path):
        (tmp_path / "trace.yaml").write_text(BLIS_HEADER + "session_context_growth: accumulate\n")
        rows = [
            blis(0, 0, (100, 50), session="s1"),
            blis(1, 5, (60, 15), session="s2"),
            blis(2, 9, (30, 40), session="s1"),
        ]
        requests = read("blis-csv", BLIS + "".join(rows))
        assert [one.parts[0].length for one in requests] == [100, 60, 180]
        assert requests[0].parts[0].content == requests[2].parts[0].content
        late = read("blis-csv", BLIS + "".join(rows), window_s=[0.000006, 1])
        assert [one.parts[0].length for one in late] == [180]

    def test_a_header_that_is_none_or_of_another_version(self, read, tmp_path):
        for text, words in (("- 3\n", "no header"), (BLIS_HEADER.replace("3", "9", 1), "has trace_version 9")):
            (tmp_path / "trace.yaml").write_text(text)
            refused(read, "blis-csv", BLIS + blis(0, 0, (1, 1)), words)

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            (blis(1, 5, (3, 0)), "has 3 input tokens and 0 output tokens"),
            (blis(1, 5, (3, 1), image=9), "6 more tokens of media than of the whole input"),
            (blis(1, -5, (3, 1)), "has arrival_time_us -5"),
            (blis(1, "x", (3, 1)), "needs whole numbers"),
        ],
    )
    def test_bad_lines(self, read, row, words):
        assert "trace.txt, line 3" in refused(read, "blis-csv", BLIS + blis(0, 0, (1, 1)) + row, words)


class TestAiperf:
    URL = "http://images.cocodataset.org/test2017/000000004900.jpg"

    def test_equal_texts_and_pictures_are_the_same_again(self, read):
        line = json.dumps({"text": "x" * 41, "images": [self.URL, self.URL]}) + "\n"
        first, second = read("aiperf-jsonl", line * 2, image_size="512x512", output_tokens=500)
        assert first.parts == second.parts
        assert first.parts == (TokenRun(("text", "x" * 41), 0, 10), *[MediaRef(self.URL, height=512, width=512)] * 2)
        assert (first.arrival_ms, second.arrival_ms, second.output_tokens) == (0.0, 0.0, 500)

    def test_data_is_known_by_its_digest_and_a_uuid_names_a_picture(self, read):
        data = "data:image/png;base64," + "A" * 400
        lines = [
            {"text": "a", "image": data, "timestamp": 5},
            {"images": [data], "image_uuids": ["u1"], "timestamp": 7.5},
        ]
        sizes = {"kind": "weighted", "sizes": [{"size": "8x8"}, {"size": "9x9"}]}
        first, second = read(
            "aiperf-jsonl", "\n".join(map(json.dumps, lines)), image_size=sizes, output_tokens=1, media_position="start"
        )
        assert first.media[0].content.startswith("sha256:")
        assert second.parts[0].content == "u1"
        assert second.arrival_ms == 2.5

    def test_objects_videos_and_sounds(self, read):
        line = {
            "texts": [{"name": "t", "contents": ["ab", "cd"]}],
            "video": "v.mp4",
            "audios": ["s.wav"],
            "output_length": 3,
        }
        (one,) = read("aiperf-jsonl", json.dumps(line), video_size="8x8x16", audio_s=2.5)
        assert [part.length for part in one.text] == [1, 1]
        assert [(part.modality, part.num_frames, part.duration_s) for part in one.media] == [
            ("video", 16, 16 / 30),
            ("audio", 1, 2.5),
        ]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ({"text": "a"}, "says no output_length of at least 1, and output_tokens is not set"),
            ({"text": "a", "image": "i", "output_length": 1}, "has images, whose size the file does not say"),
            ({"text": "a", "delay": 5, "output_length": 1}, "has turns or a delay"),
            ({"text": "a", "timestamp": 5, "output_length": 1}, "has a timestamp where others have none"),
            ({"images": ["a"], "image_uuids": ["b", "c"], "output_length": 1}, "has 2 image_uuids for 1 images"),
            ({"text": "", "output_length": 1}, "has neither text nor media"),
            ({"images": [{"url": 3}], "output_length": 1}, "has an object without a list of texts"),
        ],
    )
    def test_bad_lines(self, read, line, words):
        good = json.dumps({"text": "a", "output_length": 1})
        assert "trace.txt, line 2" in refused(read, "aiperf-jsonl", f"{good}\n{json.dumps(line)}\n", words)


TALK = {
    "session_id": "talk",
    "turns": [
        {"text": "a" * 40, "image": "cat", "output_length": 7, "timestamp": 100},
        {"text": "b" * 20, "output_length": 5, "delay": 500},
        {"text": "c" * 4, "image": "dog", "output_length": 1},
    ],
}


class TestAiperfTurns:
    def test_a_turn_carries_all_turns_and_answers_before_it(self, read):
        single = json.dumps({"turns": [{"text": "d" * 8, "output_length": 2}]})
        requests = read("aiperf-multi-turn", f"{json.dumps(TALK)}\n{single}\n", answer_s=2, image_size="64x64")
        assert [(one.request_id, one.arrival_ms, one.session_id) for one in requests] == [
            ("aiperf-2/turn0", 0.0, "aiperf-2"),
            ("talk/turn0", 100.0, "talk"),
            ("talk/turn1", 2600.0, "talk"),
            ("talk/turn2", 4600.0, "talk"),
        ]
        first, second, third = (one.parts for one in requests[1:])
        cat, dog = (MediaRef(name, height=64, width=64) for name in ("cat", "dog"))
        assert first == (TokenRun(("text", "a" * 40), 0, 10), cat)
        assert second == (*first, TokenRun(("answer", "talk", 0), 0, 7), TokenRun(("text", "b" * 20), 0, 5))
        assert third == (*second, TokenRun(("answer", "talk", 1), 0, 5), TokenRun(("text", "c" * 4), 0, 1), dog)

    @pytest.mark.parametrize(
        ("turns", "words"),
        [
            ([], "has no turns"),
            ([{"text": "a", "output_length": 1}, {"text": "a"}], "turn 1 says no output_length of at least 1"),
            ([{"text": "", "output_length": 1}], "turn 0 has neither text nor media"),
            (
                [{"text": "a", "output_length": 1, "timestamp": 5}, {"text": "a", "output_length": 1, "timestamp": 4}],
                "turn 1 is sent before the one before it",
            ),
        ],
    )
    def test_bad_lines(self, read, turns, words):
        text = f"{json.dumps(TALK)}\n{json.dumps({'turns': turns})}\n"
        assert "trace.txt, line 2" in refused(read, "aiperf-multi-turn", text, words, answer_s=2, image_size="64x64")


OWN = "arrival_s,prompt_tokens,output_tokens,images,image_hashes\n"


class TestOwnCsv:
    def test_counts_sizes_and_hashes(self, read):
        rows = "3.5,100,20,,\n4,50,10,2,cat;dog\n5.25,9,1,720p;640x480,bird;\n"
        with pytest.raises(InputError, match="has 2 images and 1 image_hashes"):
            read("csv", OWN + rows, image_size="8x8")
        first, second, third = read("csv", OWN + rows.replace("bird;\n", "bird;x\n"), image_size="8x8")
        assert first == WorkloadRequest("csv-2", 0.0, (TokenRun("csv-2", 0, 100),), 20)
        assert second.media == (MediaRef("cat", height=8, width=8), MediaRef("dog", height=8, width=8))
        assert (second.arrival_ms, third.arrival_ms) == (500.0, 1750.0)
        assert third.media == (MediaRef("bird", height=720, width=1280), MediaRef("x", height=640, width=480))

    def test_a_picture_has_one_size_wherever_it_comes(self, read):
        sizes = {"kind": "weighted", "sizes": [{"size": f"{side}x{side}"} for side in range(8, 40)]}
        rows = "".join(f"{second},9,1,1,{'cat' if second % 2 else second}\n" for second in range(40))
        requests = read("csv", OWN + rows, image_size=sizes)
        assert len({one.media[0] for one in requests if one.media[0].content == "cat"}) == 1
        assert len({one.media[0].height for one in requests}) > 5

    @pytest.mark.parametrize(
        ("cell", "size"),
        [
            ("1280x720", "an image of 1280x720"),
            ("720x1280x3", "a video of 720x1280, 3 frames, 0.1 s"),
            ("1", "an image of 8x8"),
        ],
    )
    def test_a_hash_of_two_sizes_is_refused(self, read, cell, size):
        rows = f"0,9,1,720p,cat\n1,9,1,720p;8x8,cat;dog\n2,9,1,{cell},cat\n"
        told = refused(read, "csv", OWN + rows, f"has the hash 'cat' for {size}, which was", image_size="8x8")
        assert "trace.txt, line 4" in told
        assert "which was an image of 720x1280 before; equal hashes are one file" in told

    @pytest.mark.parametrize(
        ("header", "cell", "arrival_ms"),
        [
            ("timestamp", "2026-11-29 18:15:46.68,2026-11-29T18:15:48Z", 1320.0),
            ("arrival_ms", "10,12.5", 2.5),
            ("time", "1764439200,1764439201.5", 1500.0),
        ],
    )
    def test_times(self, read, header, cell, arrival_ms):
        first, second = cell.split(",")
        text = f"{header},input_tokens,completion_tokens\n{first},1,1\n{second},1,1\n"
        assert read("csv", text)[1].arrival_ms == pytest.approx(arrival_ms)

    def test_other_names_and_unused_columns_are_told(self, tmp_path):
        (tmp_path / "log.csv").write_text("when,usage.prompt,usage.out,model,who\n0,5,6,m,s1\n")
        columns = {
            "arrival": "when",
            "prompt_tokens": "usage.prompt",
            "output_tokens": "usage.out",
            "session_id": "who",
        }
        workload = build_workload({"kind": "csv", "path": "log.csv", "columns": columns}, tmp_path, 1)
        (one,) = workload
        assert (one.session_id, one.output_tokens) == ("s1", 6)
        assert workload.assumptions == "the text of every request is new; columns not used: model"
        for change, words in (
            ({"arrival": "then"}, "columns.arrival = 'then': .*has no such column; it has when"),
            ({"arival": "when"}, "^workload: columns has no 'arival': there are arrival, "),
            ({"arrival_s": "when"}, "columns has no 'arrival_s': it is 'arrival' there"),
        ):
            with pytest.raises(InputError, match=words):
                build_workload({"kind": "csv", "path": "log.csv", "columns": columns | change}, tmp_path, 1)

    def test_prompts_that_count_pictures_and_share_a_prefix(self, read):
        spec = {"image_size": {"kind": "tokens", "tokens": 300}, "prompt_includes_images": True}
        (one,) = read("csv", OWN + "0,1000,1,2,\n", **spec, shared_prefix_tokens=50)
        assert one.parts == (
            TokenRun("csv/prefix", 0, 50),
            MediaRef("csv-2/0", num_tokens=300),
            MediaRef("csv-2/1", num_tokens=300),
            TokenRun("csv-2", 0, 350),
        )
        with pytest.raises(InputError, match="prompt_includes_images: true needs an image_size of kind tokens"):
            read("csv", OWN + "0,1000,1,2,\n", prompt_includes_images=True)

    def test_what_a_server_counted_is_text_and_its_pictures(self, read, tmp_path):
        lines = "0,2000,1,720p;336x336x8,\n1,500,1,,\n2,902,1,720p,\n"
        as_server = {"prompt_includes_images": "qwen3-vl-8b"}
        requests = read("csv", OWN + lines, **as_server)
        renderer = Renderer(family("qwen3-vl-8b"), IDEAL, [])
        assert [renderer.render(one).prompt.num_tokens for one in requests] == [2000, 500, 902]
        assert [sum(run.length for run in one.text) for one in requests] == [684, 500, 20]
        told = refused(
            read, "csv", OWN + "0,880,1,,\n1,881,1,720p,\n", "881 prompt tokens: fewer than the 882 of its", **as_server
        )
        assert "trace.txt, line 3" in told
        text = build_workload({"kind": "csv", "path": "trace.txt", **as_server}, tmp_path, 1).assumptions
        assert "prompt_tokens counts pictures too, as qwen3-vl-8b has them" in text

    def test_pictures_of_a_server_with_other_limits(self, read):
        # LLaVA-1.5 takes 576 tokens of any picture.
        (llava,) = read("csv", OWN + "0,600,1,480x640,\n", prompt_includes_images="llava-1.5-7b")
        assert [run.length for run in llava.text] == [24]
        few = {"prompt_includes_images": "gemma-4-31b", "family_options": {"max_soft_tokens": 70}}
        (gemma,) = read("csv", OWN + "0,100,1,720p,\n", **few)
        assert 28 <= sum(run.length for run in gemma.text) < 100
        for wrong, words in (
            ({"prompt_includes_images": "qwen9"}, "prompt_includes_images: model family 'qwen9': no such family"),
            (few | {"family_options": {"pixels": 3}}, "no such constant"),
            ({"family_options": {"max_soft_tokens": 70}}, "it names none"),
        ):
            refused(read, "csv", OWN + "0,100,1,,\n", words, **wrong)

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ("x,1,1,,", "needs seconds, or a time like"),
            ("1,x,1,,", "needs whole numbers of tokens"),
            ("1,1,0,,", "has 1 prompt tokens and 0 output tokens"),
            ("1,0,1,,", "has 0 prompt tokens"),
            ("1,1,1,many,", "needs a number of images, or a size for each"),
            ("1,1,1,2,", "has 2 images whose size it does not say"),
            ("1,1,1,0x4,", "needs a number of images, or a size for each"),
            ("1,1,1,8x8,a;b", "has 1 images and 2 image_hashes"),
            ("-1,1,1,,", "time goes back by 1000 ms"),
            ("inf,1,1,,", "needs seconds"),
            ("1,1,1", "has 3 cells where the header has 5"),
        ],
    )
    def test_bad_lines(self, read, row, words):
        assert "trace.txt, line 3" in refused(read, "csv", f"{OWN}0,1,1,,\n{row}\n", words)

    def test_ids_and_priorities(self, read):
        header = "arrival_s,prompt_tokens,output_tokens,request_id,priority,slo_class\n"
        first, second = read("csv", header + "0,1,1,a,,\n1,1,1,b,-2,fast\n")
        assert (first.request_id, first.priority, second.priority, second.slo_class) == ("a", 0, -2, "fast")
        refused(read, "csv", header + "0,1,1,a,,\n1,1,1,a,,\n", "has the request_id 'a' of a line before")
        refused(read, "csv", header + "0,1,1,a,high,\n", "needs a whole number as priority")

    def test_other_separators_are_told_where_the_form_is_named(self, tmp_path):
        (tmp_path / "log.csv").write_text("when;prompt_tokens;output_tokens;images\n0;1;1;8x8\n")
        with pytest.raises(InputError, match=r"log\.csv, line 1 .*: has ';' between its cells"):
            build_workload({"kind": "csv", "path": "log.csv", "columns": {"arrival": "when"}}, tmp_path, 1)

    def test_pictures_alone_are_a_prompt(self, read):
        (one,) = read("csv", OWN + "0,0,1,8x8,\n")
        assert one.parts == (MediaRef("csv-2/0", height=8, width=8),)


class TestDetection:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty"),
            ("\n\n", "is empty"),
            ("{\n", "is no JSON"),
            ('{"prompt": 3}\n', "has 'prompt', which is the start of no form that is known; name it with --from"),
            ("num_images,cdf\n1,2\n", "has 'num_images, cdf'"),
            (
                "arrival_s;prompt_tokens;output_tokens\n1;2;3\n",
                "line 1 .*: has ';' between its cells; write the file with commas",
            ),
            ("arrival_s\tprompt_tokens\toutput_tokens\n", "has a tab between its cells"),
            ("a prompt; an answer\n", "is the start of no form"),
            ("ts,prompt_tokens,output_tokens\n1,2,3\n", r"--from csv --set 'columns=\{arrival: NAME\}'"),
        ],
    )
    def test_what_is_no_trace(self, tmp_path, text, words):
        path = tmp_path / "some.txt"
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            detect_format(path)

    def test_a_description_of_blis_is_told_from_a_scenario(self, tmp_path):
        path = tmp_path / "w.yaml"
        for text in ("clients: [{id: a}]", "aggregate_rate: 3", "inference_perf: {}"):
            path.write_text(f"version: 2\n{text}\n")
            assert detect_format(path) == "blis-yaml"
        for text in ("clients: {leave_share: 0.1}", "[clients]", "{", "\xff"):
            path.write_text(text)
            assert not is_blis_yaml(path)

    def test_own_lines_are_told_from_plain_ones(self, tmp_path):
        path = tmp_path / "some.jsonl"
        plain = {"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [1]}
        for more, form in (({}, "mooncake-jsonl"), ({"mm_items": []}, "jsonl"), ({"later": 1}, "mooncake-jsonl")):
            path.write_text(json.dumps(plain | more))
            assert detect_format(path) == form
        path.write_text('{"format": "epdsim-trace", "version": 1}\n')
        assert detect_format(path) == "jsonl"
        assert detect_format(tmp_path) == "servegen"
