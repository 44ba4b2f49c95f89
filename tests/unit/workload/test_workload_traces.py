"""Readers of Azure and JSON-lines traces: what they accept, what they refuse and in which words."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from itertools import islice
from typing import ClassVar

import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload import MediaRef, TraceCut, WorkloadRequest, build_workload, read_azure_csv, read_jsonl, write_jsonl
from epdsim.workload.trace_files import in_order

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:16:46.6805901,4,5"]


@pytest.fixture
def azure(tmp_path):
    def write(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def mooncake_line(timestamp=0, input_length=1000, output_length=5, hash_ids=(0, 1), **more):
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": list(hash_ids),
            **more,
        }
    )


@pytest.fixture
def jsonl(tmp_path):
    def write(*lines, name="trace.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return path

    return write


class TestAzure:
    expected = (
        WorkloadRequest("azure-2", 0.0, (TokenRun("azure-2", 0, 374),), 44),
        WorkloadRequest("azure-3", 4314.579, (TokenRun("azure-3", 0, 396),), 109),
        WorkloadRequest("azure-4", 60000.0001, (TokenRun("azure-4", 0, 4),), 5),
    )

    @pytest.mark.parametrize(
        "text",
        [
            "\n".join([HEADER, *ROWS]),
            "\r\n".join([HEADER, *ROWS]),
            "\r\n".join([HEADER, *ROWS, "", ""]),
            b"\xef\xbb\xbf" + "\n".join([HEADER, *ROWS]).encode(),
            "\n".join([HEADER.lower(), *(row.replace(",", ", ") for row in ROWS)]),
            "\n".join([HEADER, *('"' + row.replace(",", '","') + '"' for row in ROWS)]),
            gzip.compress("\n".join([HEADER, *ROWS]).encode(), mtime=0),
        ],
    )
    def test_ends_marks_quotes_and_gzip_read_the_same(self, azure, text):
        assert tuple(read_azure_csv(azure(text))) == self.expected

    def test_the_header_decides_the_columns(self, azure):
        rows = [",".join([row.split(",")[2], "x", *row.split(",")[:2]]) for row in ROWS]
        assert (
            tuple(read_azure_csv(azure("\n".join(["GeneratedTokens,more,TIMESTAMP,ContextTokens", *rows]))))
            == self.expected
        )

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("2024-10-15T12:00:00.269Z", "2024-10-15T12:00:01.270Z"),
            ("2024-10-15 12:00:00.269+00:00", "2024-10-15 14:00:01.270+02:00"),
            ("2024-10-15 12:00:00.269000", "2024-10-15 12:00:01.27"),
            ("2024-10-15 23:59:59.269", "2024-10-16 00:00:00.270"),
        ],
    )
    def test_forms_of_the_time(self, azure, first, second):
        requests = read_azure_csv(azure(f"{HEADER}\n{first},1,1\n{second},1,1"))
        assert [request.arrival_ms for request in requests] == [0.0, 1001.0]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("2023-11-16 18:15:47.0,374", "has 2 cells where the header has 3"),
            ("2023-11-16 18:1", "has 1 cells where the header has 3"),
            ("2023-11-16 18:1,3,4", "needs a time like"),
            ("2023-11-16 18:15:47.1x,3,4", "needs a time like"),
            ("2023-13-16 18:15:47.1,3,4", "needs a time like"),
            ("2023-11-16 18:15:47.0,nan,4", "whole numbers of tokens"),
            ("2023-11-16 18:15:47.0,3.5,4", "whole numbers of tokens"),
            ("2023-11-16 18:15:47.0,-3,4", "has -3 context tokens"),
            ("2023-11-16 18:15:47.0,3,0", "0 generated tokens"),
            ("2023-11-16 18:15:46.0,3,4", "time goes back by 680.59 ms"),
        ],
    )
    def test_a_bad_line_is_named(self, azure, line, words):
        path = azure("\n".join([HEADER, ROWS[0], line]))
        requests = read_azure_csv(path)
        assert next(requests).request_id == "azure-2"
        with pytest.raises(InputError, match=words) as raised:
            list(requests)
        assert str(raised.value).startswith(f"{path}, line 3")
        assert raised.value.remedy

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "is empty"),
            (HEADER, "holds no requests; the file has no rows"),
            ("\n".join(ROWS), "the first line must name the columns"),
            ("TIMESTAMP,ContextTokens\n", "GeneratedTokens is not there"),
            (b"\xff\xfe\x00", "is not UTF-8 text"),
            (gzip.compress(b"x" * 10_000 + HEADER.encode(), mtime=0)[:40], "gzip stream is damaged"),
        ],
    )
    def test_a_file_that_is_no_trace(self, azure, content, words):
        with pytest.raises(InputError, match=words):
            list(read_azure_csv(azure(content)))

    def test_no_file_and_a_folder(self, tmp_path):
        with pytest.raises(InputError, match="no such file"):
            list(read_azure_csv(tmp_path / "nowhere.csv"))
        with pytest.raises(InputError, match="is a folder"):
            list(read_azure_csv(tmp_path))

    def test_zero_tokens_by_choice(self, azure):
        path = azure("\n".join([HEADER, "2023-11-16 18:15:46.0,7,0", ROWS[0]]))
        assert [r.output_tokens for r in read_azure_csv(path, zero_tokens="one")] == [1, 44]
        assert [r.output_tokens for r in read_azure_csv(path, zero_tokens="skip")] == [44]

    def test_cut_and_pace(self, azure):
        path = azure("\n".join([HEADER, *ROWS]))
        window = list(read_azure_csv(path, TraceCut((4.0, 61.0), None, 2.0)))
        assert [r.request_id for r in window] == ["azure-3", "azure-4"]
        assert [r.arrival_ms for r in window] == pytest.approx([157.2895, 28000.00005])
        assert [r.request_id for r in read_azure_csv(path, TraceCut(limit=2))] == ["azure-2", "azure-3"]
        assert [r.request_id for r in read_azure_csv(path, TraceCut((0, 60)))] == ["azure-2", "azure-3"]
        with pytest.raises(InputError, match=r"holds no requests; the trace ends at 60 s"):
            list(read_azure_csv(path, TraceCut((100.0, 200.0))))

    @pytest.mark.parametrize(
        "cut",
        [
            {"window_s": (5.0, 5.0)},
            {"window_s": (-1.0, 5.0)},
            {"window_s": (math.nan, 5.0)},
            {"limit": 0},
            {"rate_scale": 0.0},
            {"rate_scale": -2.0},
            {"rate_scale": math.nan},
            {"rate_scale": math.inf},
        ],
    )
    def test_cuts_that_are_none(self, cut):
        with pytest.raises(InputError, match=next(iter(cut))):
            TraceCut(**cut)

    def test_what_lies_beyond_the_limit_is_not_read(self, azure):
        path = azure("\n".join([HEADER, ROWS[0], "rubbish"]))
        assert len(list(read_azure_csv(path, TraceCut(limit=1)))) == 1

    def test_images_of_the_lmm_trace_need_a_size(self, azure):
        path = azure(
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.269Z,2,770,491\n2024-10-15T12:00:05.819Z,0,949,126"
        )
        spec = {"kind": "azure-csv", "path": str(path)}
        with pytest.raises(InputError, match="has 2 images whose size the trace does not say; set image_size"):
            list(build_workload(spec, path.parent, 1))
        first, second = build_workload({**spec, "image_size": "720p", "image_position": "end"}, path.parent, 1)
        assert first.parts == (
            TokenRun("azure-2", 0, 770),
            MediaRef("azure-2/0", height=720, width=1280),
            MediaRef("azure-2/1", height=720, width=1280),
        )
        assert second.parts == (TokenRun("azure-3", 0, 949),)
        within = {"image_size": {"kind": "tokens", "tokens": 300}, "context_includes_images": True}
        first, _ = build_workload({**spec, **within}, path.parent, 1)
        assert first.parts[-1] == TokenRun("azure-2", 0, 170)

    def test_a_long_trace_is_not_held_in_memory(self, azure):
        count = 15_000
        rows = (
            f"2023-11-16 {18 + s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.5,10,10"
            for s in (i // 10 for i in range(count))
        )
        path = azure("\n".join([HEADER, *rows]))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_azure_csv(path)) == count
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2_000_000


class TestOrder:
    rows = ((0.0, 2, "a"), (50.0, 3, "b"), (20.0, 4, "c"), (50.0, 5, "d"), (90.0, 6, "e"))

    def test_disorder_within_bounds_is_sorted_and_stable(self, tmp_path):
        assert [row[2] for row in in_order(self.rows, tmp_path, 30.0)] == ["a", "c", "b", "d", "e"]

    def test_disorder_beyond_bounds_is_refused_with_its_line(self, tmp_path):
        with pytest.raises(InputError, match=r"line 4: time goes back by 30 ms, more than reorder_ms 29 allows"):
            list(in_order(self.rows, tmp_path, 29.0))

    def test_a_sorted_trace_is_passed_on_row_by_row(self, tmp_path):
        rows = in_order(((float(i), i, i) for i in range(10**9)), tmp_path)
        assert [row[2] for row in islice(rows, 3)] == [0, 1, 2]


class TestMooncake:
    def test_blocks_are_runs_and_equal_ids_are_equal_content(self, jsonl):
        first, second = read_jsonl(jsonl(mooncake_line(), mooncake_line(3000.5, 1537, 7, (0, 1, 2, 46))))
        assert first.parts == (TokenRun(("mooncake", 0), 0, 512), TokenRun(("mooncake", 1), 0, 488))
        assert [part.length for part in second.parts] == [512, 512, 512, 1]
        assert second.parts[0] == first.parts[0]
        assert (second.arrival_ms, second.output_tokens, second.request_id) == (3000.5, 7, "line-2")

    def test_tokens_without_an_id_are_new(self, jsonl):
        (request,) = read_jsonl(jsonl(mooncake_line(hash_ids=(9,))))
        assert request.parts == (TokenRun(("mooncake", 9), 0, 512), TokenRun("line-1", 0, 488))

    def test_other_block_sizes(self, jsonl):
        path = jsonl(mooncake_line(input_length=40, hash_ids=(4, 5, 6)))
        (request,) = build_workload({"kind": "mooncake-jsonl", "path": str(path), "block_tokens": 16}, path.parent, 0)
        assert [part.length for part in request.parts] == [16, 16, 8]

    def test_more_keys_are_ignored_in_a_foreign_trace_and_refused_in_ours(self, jsonl):
        path = jsonl(mooncake_line(type="chat"))
        assert len(list(read_jsonl(path, strict=False))) == 1
        with pytest.raises(InputError, match="unknown field `type`"):
            list(read_jsonl(path))

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            (mooncake_line()[:30], "is not a record of the trace"),
            ("{", "truncated"),
            ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "is not a record"),
            ('{"timestamp": 5000}', "missing required field `input_length`"),
            (mooncake_line(5000, input_length="12"), "Expected `int`, got `str`"),
            (mooncake_line(5000, hash_ids=(0, 1, 2)), "has 3 hash_ids where 1000 tokens fill 2 blocks of 512"),
            (mooncake_line(5000, output_length=0), "output_length 0"),
            (mooncake_line(5000, input_length=0, hash_ids=()), "input_length 0"),
            (mooncake_line(5000, input_length=-1), "input_length -1"),
            (mooncake_line(-1), "timestamp -1"),
            (mooncake_line(10), "time goes back by 990 ms"),
        ],
    )
    def test_a_bad_line_is_named(self, jsonl, line, words):
        path = jsonl(mooncake_line(1000), line)
        requests = read_jsonl(path)
        next(requests)
        with pytest.raises(InputError, match=words) as raised:
            list(requests)
        assert str(raised.value).startswith(f"{path}, line 2")
        assert raised.value.remedy


class TestOwnForm:
    picture: ClassVar[dict] = {"hash": "cat", "h": 480, "w": 640, "offset": 300}

    def test_media_stand_where_their_offset_says(self, jsonl):
        clip = {
            "hash": "c",
            "modality": "video",
            "h": 8,
            "w": 8,
            "frames": 30,
            "duration_s": 1.0,
            "offset": 1000,
            "file_bytes": 9,
        }
        (request,) = read_jsonl(
            jsonl(mooncake_line(mm_items=[self.picture, {**self.picture, "hash": "dog"}, clip], session_id="s"))
        )
        assert request.parts == (
            TokenRun(("mooncake", 0), 0, 300),
            MediaRef("cat", height=480, width=640),
            MediaRef("dog", height=480, width=640),
            TokenRun(("mooncake", 0), 300, 212),
            TokenRun(("mooncake", 1), 0, 488),
            MediaRef("c", "video", 8, 8, 30, 1.0, 0, 9),
        )
        assert request.session_id == "s"

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"mm_items": [{**picture, "offset": 1001}]}, "offset 1001, which is not from 0 to 1000"),
            ({"mm_items": [picture, {**picture, "offset": 299}]}, "offset 299, which is not from 300 to 1000"),
            ({"mm_items": [{**picture, "h": 0}]}, "of 0 pixels"),
            ({"mm_items": [{**picture, "frames": 0}]}, "no frames"),
            ({"mm_items": [{**picture, "modality": "smell"}]}, "Invalid enum value"),
            ({"mm_items": [{**picture, "height": 5}]}, "unknown field `height`"),
            ({"runs": [["a", 0, 5]]}, "both runs and hash_ids"),
            ({"hash_ids": [], "runs": [["a", 0, 999]]}, "do not add up to input_length 1000"),
            ({"hash_ids": [], "runs": [["a", 0, 1000], ["a", 0, 0]]}, "do not add up"),
            ({"hash_ids": [], "runs": [[1.5, 0, 1000]]}, "has the content 1.5"),
            ({"hash_ids": [], "runs": [[True, 0, 1000]]}, "has the content True"),
        ],
    )
    def test_what_makes_no_prompt_is_refused(self, jsonl, more, words):
        with pytest.raises(InputError, match=words):
            list(read_jsonl(jsonl(mooncake_line(**more))))

    def test_a_hash_of_two_sizes_is_neither_read_nor_written(self, jsonl, tmp_path):
        lines = [mooncake_line(second, mm_items=[{**self.picture, "h": 480 + second // 2}]) for second in range(3)]
        with pytest.raises(
            InputError, match=r"line 3: has the hash 'cat' for an image of 481x640, which was an image of 480"
        ):
            list(read_jsonl(jsonl(*lines)))
        requests = [WorkloadRequest("a", 0.0, (MediaRef("x", num_tokens=tokens),), 1) for tokens in (3, 3, 4)]
        with pytest.raises(InputError, match="request 'a': has the hash 'x' for an image of 4 tokens"):
            write_jsonl(requests, tmp_path / "out.jsonl")
        assert not (tmp_path / "out.jsonl").exists()

    def test_a_mooncake_trace_is_written_back_as_it_was(self, jsonl, tmp_path):
        path = jsonl(mooncake_line(), mooncake_line(3000, 1537, 7, (0, 1, 2, 46)))
        out = tmp_path / "out.jsonl"
        assert write_jsonl(read_jsonl(path), out) == 2
        header, *written = [json.loads(line) for line in out.read_text().splitlines()]
        assert header == {"format": "epdsim-trace", "version": 1}
        assert [
            {key: line[key] for key in ("timestamp", "input_length", "output_length", "hash_ids")} for line in written
        ] == [json.loads(line) for line in path.read_text().splitlines()]

    def test_gzip_by_name(self, tmp_path):
        requests = [WorkloadRequest("a", 0.1, (MediaRef("x", num_tokens=3),), 1)]
        path = tmp_path / "out.jsonl.gz"
        write_jsonl(requests, path)
        assert path.read_bytes()[:2] == b"\x1f\x8b"
        assert list(read_jsonl(path)) == requests

    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            (WorkloadRequest("a", float("nan"), (TokenRun("x", 0, 1),), 1), "timestamp"),
            (WorkloadRequest("a", float("inf"), (TokenRun("x", 0, 1),), 1), "timestamp"),
            (WorkloadRequest("", 0.0, (TokenRun("x", 0, 1),), 1), "would read back as a different one"),
            (WorkloadRequest("a", 0.0, (TokenRun(b"x", 0, 1),), 1), "would read back as a different one"),
            (WorkloadRequest("a", 0.0, (TokenRun(object(), 0, 1),), 1), "unsupported"),
            (WorkloadRequest("a", 0.0, (TokenRun("\ud800", 0, 1),), 1), "surrogates not allowed"),
            (WorkloadRequest("a", 0.0, (MediaRef("x", "smell", 1, 1),), 1), "Invalid enum value"),
            (WorkloadRequest("a", 0.0, (MediaRef("x"),), 1), "of 0 pixels"),
            (WorkloadRequest("a", -1.0, (TokenRun("x", 0, 1),), 1), "before its predecessor"),
            (WorkloadRequest("a", 0.0, (TokenRun("x", 0, 0),), 1), "input_length 0 and no mm_items"),
            (WorkloadRequest("a", 0.0, (TokenRun(1.5, 0, 1),), 1), "has the content 1.5"),
            (
                WorkloadRequest("a", 0.0, (TokenRun(("x", frozenset({1})), 0, 1),), 1),
                "would read back as a different one",
            ),
            (WorkloadRequest("a", 0.0, (), 1), "input_length 0 and no mm_items"),
            (WorkloadRequest("a", 0.0, (TokenRun("x", 0, 1),), 0), "output_length 0"),
        ],
    )
    def test_what_cannot_be_read_back_is_not_written(self, tmp_path, request_, words):
        path = tmp_path / "out.jsonl"
        good = WorkloadRequest("g", 0.0, (TokenRun("x", 0, 1),), 1)
        with pytest.raises(InputError, match=words):
            write_jsonl([good, request_], path)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(InputError, match="its folder does not exist"):
            write_jsonl([], tmp_path / "nowhere" / "out.jsonl")
