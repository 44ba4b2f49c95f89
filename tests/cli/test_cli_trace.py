"""`epdsim trace convert` as a user has it: every form runs as before, and nothing is left half-written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epdsim.workload import build_workload, read_jsonl

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:{second:02d}.009930+00:00,{second * 31 + 1},{second + 2}\n" for second in range(20)
)
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{second / 4},GPT-4,{second * 17 + 1},{second % 7},0,API log\n" for second in range(30)
)
BAILIAN = "".join(
    json.dumps(
        {
            "chat_id": chat,
            "parent_chat_id": chat - 2 if chat > 1 else -1,
            "timestamp": chat / 8,
            "input_length": 16 * (chat + 3) - 5,
            "output_length": 4,
            "type": "text",
            "turn": 1,
            "hash_ids": list(range(chat % 2, chat + 3 + chat % 2)),
        }
    )
    + "\n"
    for chat in range(24)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 300 * i, "input_length": 600 + i, "output_length": 3, "hash_ids": [0, i % 3]}) + "\n"
    for i in range(20)
)
BLIS = (
    "request_id,session_id,prefix_group,prefix_length,input_tokens,output_tokens,image_tokens,arrival_time_us\n"
    + "".join(f"{i},s{i % 3},g,64,{300 + i},5,{100 * (i % 2)},{i * 50_000}\n" for i in range(20))
)
BLIS_YAML = """\
version: "2"
aggregate_rate: 20
num_requests: 30
clients:
  - id: chat
    rate_fraction: 1
    input_distribution: {type: gaussian, params: {mean: 300, std_dev: 80, min: 1, max: 900}}
    output_distribution: {type: constant, params: {value: 6}}
"""
AIPERF = "".join(
    json.dumps({"text": "word " * (i % 4 + 9), "images": [f"{i % 5}.png"], "timestamp": 40 * i, "output_length": 4})
    + "\n"
    for i in range(20)
)
OWN = "arrival_s,prompt_tokens,output_tokens,images,image_hashes\n" + "".join(
    f"{i / 9},{200 + i},{i % 5 + 2},{i % 3},{';'.join(f'h{(i + one) % 4}' for one in range(i % 3))}\n"
    for i in range(30)
)

TURNS = "".join(
    json.dumps(
        {"turns": [{"text": "t" * (n + 9), "image": f"i{n % 3}", "timestamp": 90 * n}, {"text": "and", "delay": 40}]}
    )
    + "\n"
    for n in range(9)
)

FORMS = {
    "azure-csv": (AZURE, {}),
    "burstgpt-csv": (BURST, {}),
    "bailian-jsonl": (BAILIAN, {}),
    "mooncake-jsonl": (MOONCAKE, {}),
    "blis-csv": (BLIS, {}),
    "blis-yaml": (BLIS_YAML, {}),
    "aiperf-jsonl": (AIPERF, {"image_size": "320x320"}),
    "aiperf-multi-turn": (TURNS, {"image_size": "320x320", "answer_s": 0.2, "output_tokens": 6}),
    "csv": (OWN, {"image_size": {"kind": "weighted", "sizes": [{"size": "320x320"}, {"size": "360p"}]}}),
}
PLAIN = ["--set", "runs=[]", "--set", "claims=[]", "--set", "columns=[]"]


def run_of(epdsim, workload):
    """The figures of a run of one workload."""
    done = epdsim("run", "small.yaml", "--json", *PLAIN, "--set", f"workload={json.dumps(workload)}")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)["runs"][0]["metrics"]


@pytest.mark.parametrize("kind", FORMS)
def test_a_converted_trace_runs_as_the_original_does(epdsim, kind):
    text, keys = FORMS[kind]
    name = "in.yaml" if kind == "blis-yaml" else "in.txt"
    Path(name).write_text(text)
    settings_ = [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = epdsim("trace", "convert", name, "-o", "out.jsonl.gz", *settings_)
    assert (done.code, done.err) == (0, "")
    assert f"read {Path(name).absolute()} as {kind}\n" in done.out
    assert done.out.endswith("wrote out.jsonl.gz, which a workload of kind jsonl reads\n")
    source = {"kind": kind, "path": name, **keys}
    assert list(read_jsonl(Path("out.jsonl.gz"))) == list(build_workload(source, Path(), 0))
    assert run_of(epdsim, source) == run_of(epdsim, {"kind": "jsonl", "path": "out.jsonl.gz"})


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_own_traffic_runs_as_before_once_converted(epdsim, data):
    names = st.lists(st.sampled_from("abc"), max_size=3)
    rows = data.draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(1, 900), st.integers(1, 9), names), min_size=1, max_size=12)
    )
    lines, now_ms = ["arrival_ms,prompt_tokens,output_tokens,images,image_hashes"], 0
    for gap_ms, prompt, output, hashes in rows:
        now_ms += gap_ms
        lines.append(f"{now_ms},{prompt},{output},{len(hashes)},{';'.join(hashes)}")
    Path("in.csv").write_text("\n".join(lines))
    assert epdsim("trace", "convert", "in.csv", "-o", "out.jsonl", "--set", "image_size=320x320").code == 0
    source = {"kind": "csv", "path": "in.csv", "image_size": "320x320"}
    assert run_of(epdsim, source) == run_of(epdsim, {"kind": "jsonl", "path": "out.jsonl"})


def test_a_scenario_s_own_traffic_is_converted_with_its_closed_loop(epdsim):
    loop = {"kind": "random-mm", "num_prompts": 12, "max_concurrency": 3, "request_rate": 50, "random_input_len": 64}
    words = ("--set", f"workload={json.dumps(loop)}", *PLAIN)
    done = epdsim("trace", "convert", "small.yaml", "-o", "out.jsonl", *words)
    assert (done.code, done.err) == (0, "")
    header = json.loads(Path("out.jsonl").read_text().splitlines()[0])
    assert (header["version"], header["concurrency"], header["keeps_arrivals"]) == (1, 3, True)
    assert run_of(epdsim, loop) == run_of(epdsim, {"kind": "jsonl", "path": "out.jsonl"})


def test_pictures_clips_and_sounds_are_counted_apart(epdsim):
    header = "arrival_s,prompt_tokens,output_tokens,images,image_hashes\n"
    sound = {"modality": "audio", "hash": "s", "duration_s": 2.0}
    line = {"timestamp": 0, "input_length": 1, "output_length": 1}
    for text, told in (
        (
            header + "0,1,1,720p;8x8,a;b\n1,1,1,1280x720x3;720p,c;a\n",
            "3 pictures (2 different), 1 clip (1 different)\n",
        ),
        (json.dumps({**line, "mm_items": [sound, sound]}), "\n2 sounds (1 different)\n"),
        (json.dumps(line), "\nno pictures, clips or sounds\n"),
    ):
        Path("in.txt").write_text(text)
        assert told in epdsim("trace", "convert", "in.txt", "-o", "out.jsonl").out


def test_converting_twice_changes_nothing_but_where_it_comes_from(epdsim):
    Path("in.jsonl").write_text(BAILIAN)
    for source, out in (("in.jsonl", "a.jsonl"), ("a.jsonl", "b.jsonl")):
        assert epdsim("trace", "convert", source, "-o", out).code == 0
    first, second = (Path(name).read_text().splitlines() for name in ("a.jsonl", "b.jsonl"))
    assert first[1:] == second[1:]
    assert json.loads(first[0])["block_tokens"] == json.loads(second[0])["block_tokens"] == 16
    assert '"hash_ids":[' in first[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("in.csv", "-o", "out.jsonl"),
            "in.csv, line 3 '1,x,3': needs whole numbers of tokens; correct or drop the line",
        ),
        (("in.csv", "-o", "out.jsonl", "--from", "azure"), "--from azure: there is no such form; there are csv,"),
        (
            ("in.csv", "-o", "out.jsonl", "--from", "azure-csv"),
            "TIMESTAMP, ContextTokens, GeneratedTokens are not there",
        ),
        (("in.csv", "-o", "in.csv"), "-o 'in.csv': the run reads this file"),
        (("in.csv", "-o", "nowhere/out.jsonl"), "its folder does not exist"),
        (("in.csv", "-o", "out.jsonl", "--set", "nonsense=3"), "workload: nonsense: is not a key that is known here"),
        (("in.csv", "-o", "out.jsonl", "--set", "imagesize=3"), "did you mean 'image_size'?"),
        (("in.csv", "-o", "out.jsonl", "--set", "path=3"), "it is chosen by IN and --from"),
        (("in.csv", "-o", "out.jsonl", "--set", "path"), "write key=value"),
        (("none.csv", "-o", "out.jsonl"), "no such file"),
        (("small.yaml", "-o", "out.jsonl", "--from", "csv"), "IN is a scenario, which says the form itself"),
        (("future.jsonl", "-o", "out.jsonl"), "is version 2 of the format, and this epdsim reads version 1"),
    ],
)
def test_what_cannot_be_converted_is_one_sentence_and_leaves_no_file(epdsim, tmp_path, words, told):
    Path("in.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,x,3\n")
    Path("future.jsonl").write_text('{"format": "epdsim-trace", "version": 2, "later": []}\n')
    before = {path.name for path in tmp_path.iterdir()}
    done = epdsim("trace", "convert", *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert done.err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_disk_that_fills_leaves_no_file(tmp_path):
    (tmp_path / "in.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,1,2\n" * 5000)

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-c", "from epdsim.cli import main; main()", "trace", "convert", "in.csv", "-o", "out.jsonl"],
        cwd=tmp_path,
        preexec_fn=little_room,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 2
    assert done.stderr == "epdsim: -o 'out.jsonl': it cannot be written (File too large); choose another place\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
