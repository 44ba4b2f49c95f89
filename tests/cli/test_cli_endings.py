"""However a run ends, a signal, a full disk, a closed output, a killed worker: one sentence, nothing half-written, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.core.files import check_apart, check_place, read_whole
from epdsim.scenario import pool
from epdsim.scenario.jobs import Job
from epdsim.scenario.sweep import workers
from epdsim.workload import media
from epdsim.workload.media import media_ref

SMALL = Path(__file__).parent / "data/small.yaml"
PROGRAM = [sys.executable, "-c", "from epdsim.cli import main; main()"]


def hears_signals():
    """What a background job ignores, its children would ignore too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(*words, cwd, **options):
    command = [*PROGRAM, *words]
    options |= {"preexec_fn": hears_signals, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_signal_takes_back_what_is_half_written(tmp_path, number):
    long = ("--set", "workload.num_requests=1000000", "--events", "e.ndjson", "--perfetto", "p.json.gz")
    with started("run", str(SMALL), *long, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob(".*.part"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(number)
        try:
            told = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert told.count("\n") == 1, told
    assert "nothing half-written is left" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here that is always full")
@pytest.mark.parametrize("words", [("run", str(SMALL)), ("run", str(SMALL), "--json"), ("--help",)], ids=" ".join)
def test_a_full_standard_output_is_one_sentence(tmp_path, words):
    with Path("/dev/full").open("w") as full, started(*words, cwd=tmp_path, stdout=full) as process:
        told = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert told == "epdsim: standard output: it cannot be used (No space left on device); choose another place\n"


def test_closed_outputs_are_no_error(tmp_path):
    command = " ".join(map("'{}'".format, [*PROGRAM, "run", str(SMALL), "--csv", "a.csv"]))
    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "a.csv").read_text().startswith("topology,ranks,figure,value\n")


def jobs(count):
    return [Job(SMALL, ("claims=[]", "runs=[]"), {}, seed) for seed in range(count)]


class _Broken(ProcessPoolExecutor):
    """A pool one of whose processes is killed while it works, the first time."""

    broken = False

    def submit(self, fn, /, *args, **kwargs):
        if not _Broken.broken:
            _Broken.broken = True
            return super().submit(os._exit, 9)
        return super().submit(fn, *args, **kwargs)


def test_a_worker_that_is_killed_costs_only_its_own_run(monkeypatch, capfd):
    with workers(1) as run_jobs:
        expected = run_jobs(jobs(3))
    _Broken.broken = False
    monkeypatch.setattr(pool, "ProcessPoolExecutor", _Broken)
    with workers(2) as run_jobs:
        assert run_jobs(jobs(3)) == expected
    told = capfd.readouterr().err
    assert _Broken.broken
    assert told.count("\n") == 1
    assert "a worker process ended abruptly" in told


def test_workers_end_at_once_when_the_work_is_given_up():
    begun = time.monotonic()
    long = Job(SMALL, ("workload.num_requests=1000000", "claims=[]", "runs=[]"), {}, 0)
    wrong = Job(SMALL, ("claims=[]", "runs=[]", "nonsense=1"), {}, 0)
    with pytest.raises(InputError, match="no such key"), workers(2) as run_jobs:
        run_jobs([long, wrong])
    assert time.monotonic() - begun < 45, "the long run was not waited for"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--html", "x", "--csv", "x"), "--csv 'x': --html goes into the same file"),
        (("--html", "x", "--csv", "./folder/../x"), "--html goes into the same file"),
        (("--csv", "small.yaml"), "--csv 'small.yaml': the run reads this file"),
        (("--events", "linked.yaml"), "--events 'linked.yaml': the run reads this file"),
        (("--perfetto", "lm.csv", "--set", "costs.lm={kind: table, csv: lm.csv}"), "the run reads this file"),
    ],
)
def test_no_output_goes_into_another_or_into_what_is_read(epdsim, tmp_path, words, told):
    (tmp_path / "folder").mkdir()
    (tmp_path / "lm.csv").write_text("phase,batch,context_tokens,step_ms\nprefill,1,100,5\ndecode,1,100,5\n")
    os.link(tmp_path / "small.yaml", tmp_path / "linked.yaml")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    done = epdsim("run", "small.yaml", *words)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_devices_take_several_outputs(tmp_path):
    check_apart({"--csv": Path(os.devnull), "--html": Path(os.devnull)}, [tmp_path / "absent"])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc here to refuse a file")
def test_a_place_is_tried_before_the_work(tmp_path):
    with pytest.raises(InputError, match="it cannot be written"):
        check_place(Path("/proc/profile.json"), "profile")
    check_place(tmp_path / "fine", "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless device here")
def test_endless_files_are_not_read_to_their_end(epdsim):
    with pytest.raises(InputError, match="larger than 10 bytes"):
        read_whole(Path("/dev/zero"), 10)
    for words in (("--profile", "/dev/zero"), ("--set", "costs.lm={kind: table, csv: /dev/zero}")):
        done = epdsim("run", "small.yaml", *words)
        assert (done.code, done.out) == (2, "")
        assert "it is larger than" in done.err


def test_one_request_with_the_most_pictures_is_built_without_those_of_its_block(epdsim, monkeypatch):
    made = []
    monkeypatch.setattr(media, "media_ref", lambda *facts: made.append(1) or media_ref(*facts))
    most = ["workload.images.count=10000", "workload.num_requests=1", "runs=[]", "claims=[]", "columns=[injected]"]
    assert epdsim("run", "small.yaml", *(word for one in most for word in ("--set", one))).code == 0
    assert 5_000 <= len(made) <= 50_000, "not the 10 million of a block of 1,024 requests"


def test_a_compared_head_that_serves_less_or_loses_a_figure_fails(epdsim):
    words = ["compare", "small.yaml", "--processes", "1", "--seeds", "0:2"]
    fewer = epdsim(*words, "--head", "fleet.prefill.scheduler.num_gpu_blocks=12", "--json")
    assert fewer.code == 1
    rows = json.loads(fewer.out)["differences"]
    assert any(row["figure"] == "requests not served" and row["is_regression"] for row in rows)
    short = epdsim(*words, "--head", "workload.output_tokens=1")
    assert short.code == 1
    assert "tpot_ms.p50" in short.out
    assert "requests need two output tokens for one" in short.out
    both = epdsim(
        *words, "--base", "workload.output_tokens=1", "--head", "workload.output_tokens=1", "--head", "title=x"
    )
    assert both.code == 0
