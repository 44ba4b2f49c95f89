"""What the verbs print, and that the same seed prints the same bytes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epdsim import __version__
from epdsim.events import RequestArrived, RequestFinished, StepPlanned, read_events, read_header

HELP = """\
Usage: epdsim [OPTIONS] COMMAND [ARGS]...

  Simulate and test disaggregated multimodal serving: render, encode, prefill,
  decode.

Options:
  --version   Print the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""
VERBS = ["run", "plan", "compare", "validate", "check", "soak", "table", "judge", "replay", "record", "calibrate"]


def in_process_of_its_own(*words, cwd, **environment):
    command = [sys.executable, "-W", "error", "-c", "from epdsim.cli import main; main()", *words]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, check=False, timeout=120
    )


def test_help_says_what_it_is_and_names_every_verb(epdsim):
    done = epdsim("--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(HELP)
    commands = done.out.removeprefix(HELP).splitlines()
    assert [line.split()[0] for line in commands] == [*VERBS, "trace"]
    assert all(line.endswith(".") and "..." not in line for line in commands), "each is told in a whole sentence"
    assert epdsim("-h") == done
    nothing_asked = epdsim()
    assert (nothing_asked.code, nothing_asked.out, nothing_asked.err) == (2, "", done.out)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_whose_options_all_say_what_they_do(epdsim, verb):
    done = epdsim(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: epdsim {verb} ")
    options = [line for line in done.out.splitlines() if line.startswith("  -")]
    assert options
    assert all(len(line.strip().split("  ")) > 1 for line in options)


def test_version(epdsim):
    done = epdsim("--version")
    assert (done.code, done.out, done.err) == (0, f"epdsim {__version__}\n", "")


def test_a_run_prints_its_question_its_assumptions_its_table_and_its_claims(epdsim):
    done = epdsim("run", "small.yaml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:3] == [
        "small: A dozen requests through every stage",
        "source: written for tests",
        "assumed: linear costs stand in for every device",
    ]
    (header,) = [line for line in lines if "ttft_ms.p99" in line]
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == [
        "topology", "ranks", "ttft_ms", "ttft_ms.p99", "completed", "ec_loads", "leg_bytes.encode",
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [row[:2] for row in rows] == [["apart", "2"], ["together", "2"], ["apart", "4"]]
    assert [row[4] for row in rows] == ["12", "12", "12"]
    assert rows[1][5:] == ["0", "0 B"]
    assert rows[0][5] == rows[2][5] != "0"
    assert lines[-1] == "holds  completed, output_tokens, leg_bytes equal across ranks at topology apart"


def test_a_run_without_columns_prints_a_summary_whose_books_close(epdsim):
    done = epdsim("run", "small.yaml", "--set", "columns=[]", "--set", "runs=[]", "--set", "claims=[]")
    assert done.code == 0
    rows = dict(
        [cell.strip() for cell in line.strip("│").split("│")] for line in done.out.splitlines() if line[:1] == "│"
    )
    assert rows["requests"] == "12 = 12 completed + 0 failed + 0 refused + 0 unfinished"
    assert rows["TTFT"].endswith("(n 12)")


def test_a_claim_that_fails_is_told_and_makes_the_exit_code_1(epdsim):
    wrong = "claims=[{kind: equal, metrics: [ec_loads], where: {ranks: [2]}, across: topology}]"
    done = epdsim("run", "small.yaml", "--set", wrong)
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("FAILS  ec_loads equal across topology at ranks 2: different are")


@pytest.mark.parametrize("columns", ["[ttft_ms]", "[]"])
def test_latencies_of_the_few_that_were_served_say_so(epdsim, columns):
    little = ("fleet.prefill.scheduler.num_gpu_blocks=8", f"columns={columns}", "claims=[]", "runs=[{ranks: [2]}]")
    words = [word for one in little for word in ("--set", one)]
    metrics = json.loads(epdsim("run", "small.yaml", *words, "--json").out)["runs"][0]["metrics"]
    assert 0 < metrics["completed"] < metrics["injected"] == metrics["completed"] + metrics["refused"] == 12
    done = epdsim("run", "small.yaml", *words)
    assert done.code == 0
    served, told = metrics["completed"], " ".join(done.out.split())
    assert f"the {served} of 12 requests that completed, not of {12 - served} refused" in told
    assert "not served" in told
    assert "raise num_gpu_blocks" in told


def test_a_figure_of_nothing_is_shown_as_none(epdsim):
    tiny = ["--set", "fleet.prefill.scheduler.num_gpu_blocks=2", "--set", "claims=[]"]
    done = epdsim("run", "small.yaml", *tiny)
    assert done.code == 0
    assert [line.split("│")[3].strip() for line in done.out.splitlines() if line.startswith("│ ")] == ["none"] * 3
    told = [line for line in done.out.splitlines() if line.startswith("not served")]
    assert [line.partition(": ")[0] for line in told] == [
        "not served  topology apart, ranks 2", "not served  topology together, ranks 2", "not served  topology apart, ranks 4",
    ]  # fmt: skip
    assert all("12 of 12 requests: the pool has 1 blocks of 16 tokens; raise num_gpu_blocks" in line for line in told)


def test_a_property_that_a_run_breaks_is_told_and_makes_the_exit_code_1(epdsim, unfair):
    whole = epdsim("run", "small.yaml", "--json")
    judged = [run["properties"] for run in json.loads(whole.out)["runs"]]
    assert all("SIM-FAIR" in one["holds"] and not one["violated"] for one in judged)
    unfair()
    done = epdsim("run", "small.yaml", "--processes", "1", "--html", "page.html")
    assert done.code == 1
    told = [line for line in done.out.splitlines() if line.startswith("VIOLATED")]
    assert told[0].startswith(
        "VIOLATED  SIM-FAIR at topology apart, ranks 2: prefill-0 takes a second prefill leg before 1 others"
    )
    assert "VIOLATED: SIM-FAIR at topology apart, ranks 2" in Path("page.html").read_text()
    (broken,) = json.loads(epdsim("run", "small.yaml", "--json", "--processes", "1").out)["runs"][0]["properties"][
        "violated"
    ]
    assert (broken["property"], broken["times"]) == ("SIM-FAIR", 11)
    done = epdsim("run", "small.yaml", "--no-check", "--processes", "1")
    assert done.code == 0
    assert "judged" not in done.out


def test_judging_changes_no_figure(epdsim):
    judged, plain = (json.loads(epdsim("run", "small.yaml", "--json", one).out) for one in ("--check", "--no-check"))
    assert [run["metrics"] for run in judged["runs"]] == [run["metrics"] for run in plain["runs"]]
    assert [run["properties"] for run in plain["runs"]] == [None] * 3


def test_an_assumption_of_some_runs_only_says_of_which(epdsim):
    repeat = "workload={kind: repeat, requests: [{id: a, output_tokens: 1, parts: [{text_tokens: 9}]}]}"
    axes = "axes={cache: {warm: {}, cold: {workload.times: 1, workload.warmups: 0}}}"
    runs = "runs=[{cache: [warm, cold]}]"
    done = epdsim("run", "small.yaml", *(word for one in (repeat, axes, runs, "claims=[]") for word in ("--set", one)))
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("assumed: at")] == [
        "assumed: at cache warm: each request is sent 2 times, 60 s apart, the first 1 to warm up",
        "assumed: at cache cold: each request is sent once, none to warm up",
    ]


def test_json_is_one_object_with_every_run_and_nothing_else_on_stdout(epdsim):
    done = epdsim("run", "small.yaml", "--json")
    assert (done.code, done.err) == (0, "")
    body = json.loads(done.out)
    assert sorted(body) == ["assumptions", "claims", "fit", "published", "runs", "scenario", "seed"]
    assert [run["at"] for run in body["runs"]] == [
        {"ranks": 2, "topology": "apart"},
        {"ranks": 2, "topology": "together"},
        {"ranks": 4, "topology": "apart"},
    ]
    for run in body["runs"]:
        books = run["metrics"]
        ended = books["completed"] + books["failed"] + books["refused"] + books["unfinished"]
        assert books["injected"] == ended == 12


def test_the_same_seed_gives_the_same_bytes_in_any_process(epdsim, tmp_path):
    first = epdsim("run", "small.yaml", "--json", "--seed", "3").out
    assert epdsim("run", "small.yaml", "--json", "--seed", "3").out == first
    for hash_seed in ("0", "1"):
        done = in_process_of_its_own(
            "run", "small.yaml", "--json", "--seed", "3", cwd=tmp_path, PYTHONHASHSEED=hash_seed
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode() == first
    other = epdsim("run", "small.yaml", "--json", "--seed", "4").out
    assert json.loads(other)["runs"] != json.loads(first)["runs"]
    assert json.loads(epdsim("run", "small.yaml", "--json", "--set", "seed=3").out) == json.loads(first)


def test_events_are_written_whole_and_the_same_each_time(epdsim, tmp_path):
    texts = []
    for name in ("a.ndjson", "b.ndjson", "c.ndjson.gz"):
        done = epdsim("run", "small.yaml", "--events", name)
        assert (done.code, done.err) == (0, "")
        data = Path(name).read_bytes()
        texts.append(gzip.decompress(data) if name.endswith(".gz") else data)
    assert texts[0] == texts[1] == texts[2]
    assert read_header(Path("a.ndjson")) == {"format": "epdsim-events", "version": 1, "scenario": "small", "seed": 0}
    events = list(read_events(Path("a.ndjson")))
    arrived = [event for event in events if isinstance(event, RequestArrived)]
    assert len(arrived) == len([event for event in events if isinstance(event, RequestFinished)]) == 3 * 12
    assert any(isinstance(event, StepPlanned) for event in events), "a file has the events of detail"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ndjson", "b.ndjson", "c.ndjson.gz", "small.yaml"]


def test_figures_do_not_depend_on_whether_events_are_written(epdsim):
    assert (
        epdsim("run", "small.yaml", "--json").out == epdsim("run", "small.yaml", "--json", "--events", "run.ndjson").out
    )


def test_set_changes_a_key_whether_the_file_has_it_or_not(epdsim):
    plain = json.loads(epdsim("run", "small.yaml", "--json").out)["runs"][0]["metrics"]
    hop = json.loads(epdsim("run", "small.yaml", "--json", "--set", "costs.hop_ms=50").out)["runs"][0]["metrics"]
    assert hop["ttft_ms"]["mean"] > plain["ttft_ms"]["mean"] + 99
    count = "workload.images.count.values"
    one = json.loads(
        epdsim("run", "small.yaml", "--json", "--set", f"{count}.0=0", "--set", f"{count}.3=0").out
    )["runs"][0]["metrics"]  # fmt: skip
    assert one["media_items"] == 12


def test_a_reader_that_leaves_ends_the_run_without_a_word(tmp_path):
    source = Path(__file__).parent / "data/small.yaml"
    command = [sys.executable, "-c", "from epdsim.cli import main; main()", "run", str(source), "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode != 0
