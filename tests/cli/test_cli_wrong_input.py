"""Wrong input of every kind: one sentence on stderr, exit code 2, nothing on stdout, nothing left behind."""

from __future__ import annotations

import gzip
import json
from itertools import zip_longest
from pathlib import Path

import pytest

SMALL = (Path(__file__).parent / "data/small.yaml").read_text(encoding="utf-8")

CUT_CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99\n"
CUT_JSONL = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n{"timestamp": 10, "input_le'
NO_PIXELS = '{"timestamp": 0, "input_length": 6, "output_length": 5, "mm_items": [{"hash": "cat", "h": 0, "w": 640}]}\n'

PUBLISHED = "{at: {topology: apart, ranks: 2}, metric: ttft_ms, value: 30}"

SAME = "{id: a, output_tokens: 1, parts: [{text_tokens: 1}]}"


@pytest.fixture
def refused(epdsim, tmp_path):
    """Runs what must be refused; its sentence."""

    def call(*words):
        before = sorted(tmp_path.rglob("*"))
        done = epdsim(*words)
        assert done.code == 2, done
        assert done.out == ""
        assert done.err.startswith("epdsim: ")
        assert done.err.count("\n") == 1, "one line"
        assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"
        return done.err.removeprefix("epdsim: ").rstrip("\n")

    return call


def first_difference(text, other):
    """Number of the first line in which two texts differ."""
    pairs = zip_longest(text.splitlines(), other.splitlines())
    return next(number for number, (a, b) in enumerate(pairs, start=1) if a != b)


def edited(old, new):
    assert SMALL.count(old) == 1, old
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("", "scenario 'file.yaml'", "its top is not a mapping of keys"),
        ("- a list\n", "scenario 'file.yaml'", "its top is not a mapping of keys"),
        ("name: [open\nfamily: x\n", "file.yaml, line 2", "not YAML"),
        ("name: a\n\tfamily: x\n", "file.yaml, line 2", "not YAML"),
        ("name: a\n---\nname: b\n", "file.yaml, line 2", "not YAML"),
        ("name: 2026-13-45\n", "file.yaml", "not YAML"),
        ("name: !!python/object:os.system x\n", "file.yaml, line 1", "not YAML"),
        ("name: &a [*a]\n", "file.yaml, line 1, key 'name.0'", "contains itself"),
        ("{[1, 2]: 3}\n", "file.yaml, line 1", "a list or a mapping"),
        (SMALL + "nmae: a\n", "file.yaml, line {changed}, key 'nmae'", "no such key"),
        (edited("name: small\n", ""), "file.yaml, key 'name'", "the key is required"),
        (SMALL + "name: twice\n", "file.yaml, line {changed}, key 'name'", "the key stands already on line 1"),
        (
            edited("rate_req_s: 20", "rate_req_s: -20"),
            "file.yaml, line {changed}, key 'workload.rate_req_s': -20",
            "greater",
        ),
        (
            edited("rate_req_s: 20", "rate_req_s: .nan"),
            "file.yaml, line {changed}, key 'workload.rate_req_s': nan",
            "finite",
        ),
        (
            edited("bandwidth_bytes_per_s: 3.0e+9", "bandwidth_bytes_per_s: .inf"),
            "line {changed}, key 'costs.body_link",
            "finite",
        ),
        (
            edited("size: [280, 420]", "size: [0, 420]"),
            "line {changed}, key 'workload.images.size.size'",
            "at least 1 pixel",
        ),
        (edited("kind: poisson", "kind: posson"), "line {changed}, key 'workload.kind': 'posson'", "it is one of"),
        (edited("kind: poisson", "knd: poisson"), "line 26, key 'workload.kind'", "the key is required"),
        (edited("topology: e+p+d", "topology: pdq"), "line 10, key 'fleet.topology': 'pdq'", "'aggregated'"),
        (edited("family: qwen2.5-vl-3b", "family: qwen9"), "line 7, key 'family'", "no such family"),
        (edited("topology: e+p+d", "dialect: vllm-9"), "line 10, key 'fleet.dialect'", "no such name"),
        (
            edited("cost: 1", "") if "cost: 1" in SMALL else SMALL + "family_options: {hue: 1}\n",
            "family_options",
            "hue",
        ),
        (edited("ranks: [4]}", "rank: [4]}"), "line {changed}, key 'runs.1.rank'", "no axis 'rank'"),
        (
            edited("[apart, together]", "[apart, nearby]"),
            "line {changed}, key 'runs.0.topology'",
            "no setting 'nearby'",
        ),
        (edited("ranks: [4]}", "ranks: []}"), "line {changed}, key 'runs.1.ranks'", "at least 1 item"),
        (edited("ttft_ms.p99", "ttft_ms.p98"), "line {changed}, key 'columns.1'", "ttft_ms has no 'p98'"),
        (edited("ttft_ms.p99", "tftt_ms"), "line {changed}, key 'columns.1'", "there is no such figure"),
        (edited("across: ranks", "across: rank"), "line {changed}, key 'claims.0.across'", "no axis 'rank'"),
        (
            edited("across: ranks", "across: topology"),
            "line {changed}, key 'claims.0'",
            "no two runs that match differ",
        ),
        (edited("kind: equal", "kind: alike"), "line {changed}, key 'claims.0.kind': 'alike'", "it is one of"),
        (SMALL + "seed: -1\n", "line {changed}, key 'seed': -1", "greater"),
        (
            edited(
                "decode: {count: 1, scheduler: {num_gpu_blocks: 512",
                "decode: {count: 1, scheduler: {enable_chunked_prefill: off",
            ),
            "line {changed}, key 'fleet.decode'",
            "a prompt of more than max_num_batched_tokens (8192) would wait for ever",
        ),
    ],
    ids=lambda value: value if len(value) < 60 and "\n" not in value else "",
)
def test_a_wrong_scenario_file_is_told_with_line_and_key(refused, tmp_path, text, place, rule):
    (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
    told = refused("run", "file.yaml", "--events", "events.ndjson")
    assert place.format(changed=first_difference(text, SMALL)) in told
    assert rule in told


@pytest.mark.parametrize(
    ("override", "place", "rule"),
    [
        ("costs.hop_ms", "--set 'costs.hop_ms'", "it has no '='"),
        ("costs.hop_ms=[1", "--set 'costs.hop_ms=[1'", "not YAML"),
        ("costs.hop_ms=-1", "key 'costs.hop_ms': -1", "greater"),
        ("costs.hop_ms=1e300", "key 'costs.hop_ms': '1e300'", "less than or equal to 1000000000000"),
        ("faults.detect_ms=1e308", "key 'faults.detect_ms': '1e308'", "less than or equal to 1000000000000"),
        ("fleet.ec.wait_ms=1e308", "key 'fleet.ec.wait_ms': '1e308'", "less than or equal to 1000000000000"),
        ("costs.hpo_ms=1", "key 'costs.hpo_ms': 1", "no such key; did you mean 'hop_ms'?"),
        ("fleet.prefil.count=2", "key 'fleet.prefil'", "no such key; did you mean 'prefill'?"),
        ("fleet.size=2", "key 'fleet.size': 2", "no such key; there are topology, dialect, orchestrator,"),
        ("workload.rate=3", "key 'workload.rate': 3", "no such key; there are "),
        ("slo.tftt_ms.p99=500", "key 'slo.tftt_ms.p99'", "there is no such figure"),
        ("plan.pools.fleet.prefill.count.high=0", "key 'plan.pools.fleet.prefill.count.high': 0", "greater"),
        ("plan.pools.fleet.prefill.count=3", "key 'plan.pools.fleet.prefill.count': 3", "it is a mapping of keys"),
        ("=3", "--set '=3'", "its key lacks a name; write dotted.key=value"),
        ("costs..hop_ms=3", "--set 'costs..hop_ms=3'", "its key lacks a name"),
        ("name.first=1", "key 'name.first'", "it leads nowhere"),
        ("runs.7.ranks=[1]", "key 'runs.7.ranks'", "it leads nowhere"),
        ("costs.lm={kind: roofline, model: gpt-0, gpu: h100}", "line 17, key 'costs.lm'", "gpt-0"),
        ("costs.lm={kind: table, csv: none.csv}", "line 17, key 'costs.lm'", "none.csv"),
        ("fleet.prefill.scheduler.num_gpu_blocks=0", "key 'fleet.prefill.scheduler'", "at least 2"),
        ("fleet.prefill.scheduler.num_gpu_blocks=1000000000", "key 'fleet.prefill.scheduler'", "at most 10,000,000"),
        ("fleet.encode.count=1000000000", "key 'fleet.encode.count': 1000000000", "less than or equal to 10000"),
        ("costs.lm.fixed_ms=1.0e+308", "key 'costs.lm.fixed_ms': 1e+308", "not between 1e-30 and 1e+30"),
        ("costs.hop_ms=1.0e-300", "key 'costs.hop_ms': 1e-300", "not between"),
        ("workload.output_tokens={kind: uniform, low: 0, high: 10000000000000000000}", "output_tokens.high'", "less than"),
        (f"workload={{kind: fixed, requests: [{SAME}, {SAME}]}}", "key 'workload': two requests", "the id 'a'"),
        ("workload.images.count=1000000000", "a count of 1,000,000,000 pictures", "at most 10,000"),
        ("workload.images.reuse.pool_size=1000000000", "pool_size': 1000000000", "less than"),
        ("claims=[{kind: equal, metrics: [], where: {}, across: ranks}]", "key 'claims.0.metrics'", "at least 1 item"),
        ("published=[{at: {ranks: 2}, metric: ttft_ms, value: 1}]", "key 'published.0.at'", "no run stands at"),
        ("runs=[{ranks: [2, 2]}]", "key 'runs'", "the run ranks 2 stands there twice"),
        ("runs=[{ranks: [1, true]}]", "key 'runs'", "the run ranks True stands there twice"),
        ("axes.more=fleet.nowhere.count", "key 'fleet.nowhere'", "no such key"),
        ("axes.more={a: {fleet.nowhere: 3}}", "key 'fleet.nowhere'", "no such key"),
        ("fleet.prefill.tp=8", "--set fleet.prefill.tp=...", "the axis 'ranks' sets this key in every run"),
        ("axes.topology={apart: {fleet.prefill.tp: 3}, together: {}}", "key 'runs.0.ranks'", "both set 'fleet.prefill.tp'"),
        (f"published=[{PUBLISHED}, {PUBLISHED}]", "key 'published.1'", "for the same point twice"),
        ("slo={completed: 1}", "key 'slo.completed'", "more is better"),
        ("columns=[busy_ms.cook-0]", "key 'columns.0'", "'cook-0' is no instance"),
        ("plan.pools={costs.hop_ms: {high: 3}}", "key 'plan.pools.costs.hop_ms'", "it is no number of instances"),
        ("published=[{at: {}, metric: ttft_ms, value: 0}]", "key 'published.0.value': 0", "greater"),
        ("fit={metric: ttft_ms, where: {}, parameters: {a: {start: 1, sets: {seed: 1}}}}", "key 'fit.where'", "0 published"),
    ],
    ids=lambda value: value.partition("=")[0],
)  # fmt: skip
def test_a_wrong_override_is_told_with_its_key(refused, override, place, rule):
    told = refused("run", "small.yaml", "--set", override)
    assert place in told
    assert rule in told


@pytest.mark.parametrize(
    ("kind", "name", "content", "place"),
    [
        ("azure-csv", "trace.csv", CUT_CSV.encode(), "trace.csv, line 3"),
        ("mooncake-jsonl", "trace.jsonl", CUT_JSONL.encode(), "trace.jsonl, line 2"),
        ("mooncake-jsonl", "trace.jsonl.gz", gzip.compress(CUT_JSONL.encode(), mtime=0)[:-20], "trace.jsonl.gz, line "),
        ("jsonl", "trace.jsonl", NO_PIXELS.encode(), "trace.jsonl, line 1"),
        ("azure-csv", "trace.csv", b"", "trace 'trace.csv'"),
        ("azure-csv", "absent.csv", None, "key 'workload': trace 'absent.csv'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("events", [(), ("--events", "events.ndjson")], ids=["plain", "events"])
def test_a_broken_trace_is_told_with_its_line(refused, tmp_path, kind, name, content, place, events):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    told = refused("run", "small.yaml", "--set", f"workload={{kind: {kind}, path: {name}}}", *events)
    assert place in told


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("nowhere/events.ndjson", "its folder does not exist"),
        ("small.yaml/events.ndjson", "its folder does not exist"),
        (".", "it is a folder"),
        ("/proc/events.ndjson", "it cannot be written"),
    ],
)
def test_events_that_cannot_be_written_are_told_before_anything_runs(refused, path, rule):
    if path.startswith("/proc") and not Path("/proc").is_dir():
        pytest.skip("no /proc here to refuse a file")
    told = refused("run", "small.yaml", "--events", path)
    assert path in told
    assert rule in told


def test_files_that_are_not_there_or_are_something_else(refused, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00\x9f" * 40)
    (tmp_path / "profile.json").write_text(json.dumps({"format": "another"}), encoding="utf-8")
    assert "it cannot be read (No such file" in refused("run", "absent.yaml")
    assert "it cannot be read (Is a directory" in refused("run", ".")
    assert "it is not UTF-8 text" in refused("run", "bytes")
    assert "cannot be read (No such file" in refused("run", "small.yaml", "--profile", "absent.json")
    assert "is no broadcast profile" in refused("run", "small.yaml", "--profile", "profile.json")
    assert "is no broadcast profile" in refused("run", "small.yaml", "--profile", "bytes")


def test_what_cannot_be_replayed_is_told(refused, epdsim, tmp_path):
    assert epdsim("run", "small.yaml", "--events", "run.ndjson").code == 0
    (tmp_path / "bytes").write_bytes(b"\x1f\x8b" * 40)
    (tmp_path / "junk.jsonl").write_text('{"config": 1, "requests": 2, "steps": 3}\n', encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow/META.json").write_text("{", encoding="utf-8")
    for what in ("absent", "small.yaml", "run.ndjson", "bytes", "junk.jsonl", "folder", "hollow", ""):
        told = refused("replay", what)
        assert what in told


def test_real_tensors_need_media_and_leave_no_events(refused):
    text_only = "workload={kind: fixed, requests: [{output_tokens: 1, parts: [{text_tokens: 9}]}]}"
    assert "no step of it admits a request with media" in refused(
        "run", "small.yaml", "--payload", "real", "--set", text_only
    )
    assert "nothing is simulated" in refused("run", "small.yaml", "--payload", "real", "--events", "e.ndjson")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("run",), "Missing argument 'SCENARIO.yaml'."),
        (("rum",), "No such command 'rum'."),
        (("run", "small.yaml", "--sede", "1"), "No such option: --sede"),
        (("run", "small.yaml", "--seed", "-1"), "Invalid value for '--seed'"),
        (("run", "small.yaml", "--seed", "one"), "Invalid value for '--seed'"),
        (("run", "small.yaml", "--payload", "pixels"), "Invalid value for '--payload'"),
        (("calibrate",), "Missing option '--output' / '-o'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_told_after_the_usage_line(epdsim, words, rule):
    done = epdsim(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: epdsim")
    assert done.err.splitlines()[-1].startswith(f"Error: {rule}")


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("costs.kv_link.latency_ms: 0", "moving this constant changes none of the figures to fit"),
        ("fleet.prefill.tp: 1", "the axis 'ranks' varies the same key"),
    ],
)
def test_a_constant_that_cannot_be_fitted_is_told(refused, key, rule):
    fit = f"fit={{metric: ttft_ms, where: {{}}, parameters: {{a: {{start: 2, sets: {{{key}}}}}}}}}"
    told = refused("run", "small.yaml", "--set", f"published=[{PUBLISHED}]", "--set", fit)
    assert "key 'fit.parameters.a" in told
    assert rule in told


CLAIM = ("--set", "claims=[{kind: equal, metrics: [tpot_ms], where: {}, across: ranks}]")


def test_a_claim_on_a_figure_that_no_run_can_have_is_refused_before_the_work(refused):
    told = refused("run", "small.yaml", *CLAIM, "--set", "workload.output_tokens=1")
    assert "key 'claims.0': the run at topology apart, ranks 2 has no tpot_ms: no request has two output tokens" in told


def test_a_claim_on_a_figure_that_a_run_turns_out_not_to_have_fails_and_the_rest_is_shown(epdsim):
    words = ("workload.text_tokens=500", "fleet.prefill.scheduler.num_gpu_blocks=8", "workload.output_tokens=3")
    done = epdsim("run", "small.yaml", *CLAIM, *(word for one in words for word in ("--set", one)))
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("FAILS  equal claim: metric 'tpot_ms': no request completed")
    assert "not served  topology apart, ranks 2: 12 of 12 requests" in done.out


def test_more_seeds_than_can_be_held_are_refused(refused):
    for seeds in ("0:99999999999", "\u0660:\u0662", "0:" + "9" * 5000):
        assert "--seeds" in refused("compare", "small.yaml", "--head", "title=x", "--seeds", seeds)


def test_a_setting_of_a_pool_that_no_run_has_is_told(refused):
    setting = ("--set", "runs=[{topology: [together], ranks: [2]}]", "--set", "claims=[]")
    for pool in ("encode", "decode"):
        told = refused("run", "small.yaml", *setting, "--set", f"fleet.{pool}.count=3")
        assert told.startswith(
            f"--set fleet.{pool}.count=...: no run has {pool} instances: fleet.topology is aggregated;"
        )


def test_a_loss_of_an_instance_that_no_run_has_is_told(refused):
    lost = "faults={losses: [{instance: decode-7, at_ms: 5}]}"
    told = refused("run", "small.yaml", "--set", lost)
    assert "'decode-7': the fleet has no such instance; it has prefill-0 to prefill-1, encode-0, decode-0" in told
    twice = "faults={links: [{link: kv, from_ms: 5, until_ms: 9}, {link: kv, from_ms: 8, until_ms: 12}]}"
    assert "two faults of kv link overlap at 8 ms" in refused("run", "small.yaml", "--set", twice)
