"""Sweeps that go on: a store of finished runs, killed workers and programs, full disks, and the same bytes in any case."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.report.metrics import RunMetrics
from epdsim.scenario import sweep
from epdsim.scenario.jobs import Job, JobResult, loaded_once, run_job
from epdsim.scenario.loader import load_scenario
from epdsim.scenario.progress import SweepProgress
from epdsim.scenario.store import ResultStore, job_key
from epdsim.scenario.sweep import workers

SMALL = Path(__file__).parent / "data/small.yaml"
PROGRAM = [sys.executable, "-c", "from epdsim.cli import main; main()"]
POINTS = list(range(12, 36))
RUN = (
    *("run", str(SMALL), "--json", "--set", "claims=[]"),
    *("--set", "axes.n=workload.num_requests", "--set", f"runs=[{{n: {POINTS}}}]"),
)
COMPARE = ("compare", str(SMALL), "--head", "fleet.router=least_loaded", "--json")


def jobs(count, *more):
    return [Job(SMALL, ("claims=[]", "runs=[]", *more), {}, seed) for seed in range(count)]


def entries(folder):
    return sorted(folder.glob("*.json"))


def started(*words, cwd, **options):
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*PROGRAM, *words], cwd=cwd, **options)


def wait_for(condition, process):
    until = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


class TestTheStore:
    def test_what_comes_back_is_what_was_put(self, tmp_path):
        store = ResultStore(tmp_path / "made/here")
        for job in (jobs(1)[0], Job(SMALL, ("runs=[]", "claims=[]"), {}, 0, slo={"ttft_ms.p99": 1.0}, num_requests=12)):
            result = run_job(job)
            assert store.get(job_key(job)) is None
            store.put(job_key(job), result, {})
            assert store.get(job_key(job)) == result
            assert isinstance(result.metrics, RunMetrics) == (not job.slo)
            assert [one.name for one in result.missed] == list(job.slo), (
                "a run is given up for its level, not for a lost request"
            )

    @pytest.mark.parametrize("damage", [b"", b"{", b'{"format": "epdsim-result"}', None])
    def test_a_damaged_entry_is_as_good_as_none(self, tmp_path, damage):
        store, job = ResultStore(tmp_path), jobs(1)[0]
        result = run_job(job)
        store.put(job_key(job), result, {})
        (path,) = entries(tmp_path)
        path.write_bytes(path.read_bytes()[:-9] if damage is None else damage)
        assert store.get(job_key(job)) is None
        with workers(1, store) as run_jobs:
            assert run_jobs([job]) == [result]
        assert store.get(job_key(job)) == result

    def test_an_entry_under_another_s_name_is_not_taken(self, tmp_path):
        store, (first, second) = ResultStore(tmp_path), jobs(2)
        store.put(job_key(first), run_job(first), {})
        entries(tmp_path)[0].rename(tmp_path / f"{job_key(second)}.json")
        assert store.get(job_key(second)) is None

    def test_a_number_without_form_is_refused(self, tmp_path):
        job = jobs(1)[0]
        run = run_job(job).run
        odd = JobResult(dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, broadcast_ms=float("inf"))))
        with pytest.raises(InputError, match="a number that JSON has no form for"):
            ResultStore(tmp_path).put("key", odd, {})
        assert entries(tmp_path) == []

    def test_a_file_is_no_folder(self, epdsim):
        done = epdsim("compare", "small.yaml", "--head", "fleet.router=least_loaded", "--store", "small.yaml")
        assert (done.code, done.out) == (2, "")
        assert "--store 'small.yaml': it cannot be used (File exists)" in done.err


class TestKeys:
    def test_what_changes_a_run_changes_its_key(self, tmp_path, monkeypatch):
        trace = tmp_path / "t.csv"
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\n")
        base = jobs(1, f"workload={{kind: csv, path: {trace}}}")[0]
        changes = {
            "seed": jobs(2, *base.overrides[2:])[1],
            "setting": Job(SMALL, (*base.overrides, "fleet.prefill.tp=4"), {}, 0),
            "constant": Job(SMALL, base.overrides, {}, 0, {"fleet.encode.count": 2}),
            "level": Job(SMALL, base.overrides, {}, 0, slo={"ttft_ms.p99": 1.0}),
            "stretch": Job(SMALL, base.overrides, {}, 0, stretch_s=(0.0, 1.0)),
            "monitors": Job(SMALL, base.overrides, {}, 0, is_judged=True),
            "goodput": Job(SMALL, base.overrides, {}, 0, at_goodput=True),
        }
        keys = {name: job_key(job) for name, job in changes.items()} | {"base": job_key(base)}
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,3\n")
        os.utime(trace, ns=(1, 1))
        keys["trace"] = job_key(base)
        monkeypatch.setattr("epdsim.scenario.store._code", lambda: "another version")
        keys["program"] = job_key(base)
        assert len(set(keys.values())) == len(keys)

    def test_what_only_tells_does_not(self):
        told = (
            "title=other",
            "name=x",
            "assumptions=[]",
            "columns=[completed]",
            "plan={pools: {fleet.encode.count: {high: 2}}}",
        )
        assert job_key(jobs(1)[0]) == job_key(jobs(1, *told)[0])

    def test_a_folder_of_clients_is_read_too(self, tmp_path):
        (tmp_path / "chunk-0-trace.csv").write_text("0,2.0,1.5,Gamma,0.44,1.1\n")
        data = '{"0": {"text_tokens": "{5: 1.0}", "output_tokens": "{9: 1.0}"}}'
        (tmp_path / "chunk-0-dataset.json").write_text(data)
        job = jobs(1, f"workload={{kind: servegen, path: {tmp_path}}}")[0]
        before = job_key(job)
        (tmp_path / "chunk-0-dataset.json").write_text(data.replace("5: 1", "6: 1"))
        os.utime(tmp_path / "chunk-0-dataset.json", ns=(1, 1))
        assert job_key(job) != before


@pytest.mark.parametrize(
    ("words", "num_runs"),
    [
        (("compare", "small.yaml", "--head", "fleet.router=least_loaded", "--seeds", "0:2"), 12),
        (("run", "small.yaml"), 3),
        (("validate", "small.yaml"), 3),
    ],
)
def test_a_second_run_takes_what_the_first_one_kept(epdsim, monkeypatch, words, num_runs):
    words = (*words, "--json", "--processes", "1")
    plain = epdsim(*words)
    first = epdsim(*words, "--store", "kept")
    monkeypatch.setattr(sweep, "run_job", lambda *_, **__: pytest.fail("it is run again"))
    again = epdsim(*words, "--store", "kept")
    assert plain == first == again
    assert len(entries(Path("kept"))) == num_runs


@pytest.mark.parametrize(("verb", "counts"), [("run", "123"), ("validate", "13")])
def test_processes_change_nothing(epdsim, verb, counts):
    outcomes = {epdsim(verb, "small.yaml", "--json", "--processes", count) for count in counts}
    assert len(outcomes) == 1
    assert outcomes.pop().code == 0


def test_ray_gives_the_same_bytes(epdsim):
    pytest.importorskip("ray", reason="the extra `distributed` is not installed")
    assert epdsim("run", "small.yaml", "--json", "--ray").out == epdsim("run", "small.yaml", "--json").out


def test_without_ray_it_is_one_sentence(epdsim, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = epdsim("run", "small.yaml", "--ray")
    assert (done.code, done.out) == (2, "")
    assert done.err == "epdsim: --ray: Ray is not installed; install epdsim[distributed]\n"


def test_a_page_from_the_store_is_the_page_of_the_runs(epdsim):
    words = ("run", "small.yaml", "--store", "kept", "--html")
    assert epdsim(*words, "one.html", "--processes", "2").code == 0
    assert epdsim(*words, "two.html").code == 0
    assert Path("one.html").read_text() == Path("two.html").read_text()
    assert len(entries(Path("kept"))) == 3


def test_events_are_of_runs_and_not_of_a_store(epdsim):
    done = epdsim("run", "small.yaml", "--store", "kept", "--events", "e.ndjson")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "epdsim: --events with --store: a run that is taken from the store has no events to write; leave one of them out\n"
    )


def test_a_program_that_is_killed_loses_no_finished_run(tmp_path):
    words = (*COMPARE, "--seeds", "0:3")
    plain = subprocess.run([*PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    kept = tmp_path / "kept"
    with started(*words, "--store", "kept", cwd=tmp_path) as process:
        wait_for(lambda: kept.is_dir() and len(entries(kept)) >= 3, process)
        process.kill()
        process.communicate()
    before = {path: path.stat().st_mtime_ns for path in entries(kept)}
    assert 3 <= len(before) < 18
    again = subprocess.run(
        [*PROGRAM, *words, "--store", "kept"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert (again.stdout, again.stderr) == (plain.stdout, "")
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what was finished is not run again"
    assert len(entries(kept)) == 18


def test_an_interrupt_tells_how_to_go_on(tmp_path):
    with started(
        *COMPARE,
        "--seeds",
        "0:200",
        "--store",
        "kept",
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    ) as process:
        wait_for(lambda: len(entries(tmp_path / "kept")) >= 2, process)
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "finished runs are kept in kept: the same command goes on from there\n" in err
    assert err.endswith("nothing half-written is left\n")
    assert not list((tmp_path / "kept").glob(".*.part"))


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc here to find the workers in")
def test_a_worker_that_is_killed_loses_no_finished_run_and_is_told(tmp_path):
    words = (*RUN, "--processes", "2", "--store", "kept")
    with started(*words, cwd=tmp_path) as process:
        wait_for(lambda: len(entries(tmp_path / "kept")) >= 2, process)
        before = {path: path.stat().st_mtime_ns for path in entries(tmp_path / "kept")}
        # The first child keeps semaphores; the youngest is a worker.
        os.kill(max(children(process.pid)), signal.SIGKILL)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.count("\n") == 1
    assert "a worker process ended abruptly" in err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [run["at"]["n"] for run in json.loads(out)["runs"]] == POINTS


def test_a_full_disk_loses_no_result_and_is_told_once(tmp_path):
    words = (*RUN, "--processes", "1")
    plain = subprocess.run([*PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    with started(
        *words,
        "--store",
        "kept",
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)),
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    ) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, plain.stdout)
    assert err == (
        "epdsim: --store 'kept': it cannot be written (File too large); choose another place; "
        "runs that end from here on are in the results, and not in the store\n"
    )
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_file_is_loaded_once_and_again_when_it_changes(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(SMALL.read_text())
    first = loaded_once(path, ())
    assert loaded_once(path, ()) is first
    path.write_text(SMALL.read_text().replace("num_requests: 12", "num_requests: 13"))
    assert loaded_once(path, ()).spec == load_scenario(path).spec != first.spec


def test_progress_tells_rate_and_time_left():
    progress = SweepProgress("at x")
    progress.expect(12)
    assert progress.line(3.0) == "at x: 0 of 12 runs"
    for is_stored in (True, True, False, False, False, False):
        progress.ended(is_stored=is_stored)
    assert progress.line(8.0) == "at x: 6 of 12 runs, 2 of them from the store; 0.5 a second, 12 s left"
