"""Draws from ServeGen client sets: small sets made here, and the published one."""

from __future__ import annotations

import ast
import json
import math
import tarfile

import numpy as np
import pytest

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload import MediaRef, build_workload

FIELDS = {
    "text_tokens": "{5: 0.5, 7: 0.5}",
    "image_count": "{0: 0.25, 2: 0.75}",
    "image_tokens": "{100: 0.5, 300: 0.5}",
    "output_tokens": "{0: 0.5, 9: 0.5}",
}


@pytest.fixture
def client_set(tmp_path):
    """Writes a set: one list of trace lines per client."""

    def write(*traces, fields=FIELDS, starts=(0,)):
        for number, lines in enumerate(traces):
            (tmp_path / f"chunk-{number}-trace.csv").write_text("\n".join(lines))
            (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps({str(start): fields for start in starts}))
        return tmp_path

    return write


def draw(path, seed=1, **more):
    return list(build_workload({"kind": "servegen", "path": str(path), **more}, path, seed))


STEADY = ["0,2.0,1.0,Gamma,1.0,0.5", "600,2.0,1.0,Gamma,1.0,0.5", "1200,0,0,,0,0", "1800,2.0,1.0,Weibull,1.0,0.5"]


class TestDraws:
    def test_rates_fields_and_idle_windows(self, client_set):
        requests = draw(client_set(STEADY), duration_s=2400, rate_scale=10)
        times = np.array([r.arrival_ms for r in requests]) / 1e3
        counts = np.histogram(times, [0, 600, 1200, 1800, 2400])[0]
        assert counts == pytest.approx([12_000, 12_000, 0, 12_000], abs=5 * math.sqrt(12_000))
        assert counts[2] == 0
        images = [sum(isinstance(p, MediaRef) for p in r.parts) for r in requests]
        assert set(images) == {0, 2}
        assert np.mean(images) == pytest.approx(1.5, rel=0.03)
        assert {p.num_tokens for r in requests for p in r.parts if isinstance(p, MediaRef)} == {100, 300}
        assert {p.length for r in requests for p in r.parts if isinstance(p, TokenRun)} == {5, 7}
        assert {r.output_tokens for r in requests} == {1, 9}
        assert len({p.content for r in requests for p in r.parts}) == len(requests) + sum(images)

    def test_the_measured_rate_holds_whatever_the_fitted_scale_says(self, client_set):
        requests = draw(client_set(["0,2.0,3.0,Gamma,0.1,99"]), duration_s=600, rate_scale=20)
        assert len(requests) == pytest.approx(24_000, abs=5 * math.sqrt(24_000 * 10))

    def test_the_rest_of_a_gap_is_carried_into_the_next_windows(self, client_set):
        """Near-regular gaps of 900 s cross the windows of 600 s; in the idle one time stands still."""
        lines = [
            f"{start},{0 if start == 6000 else 1 / 900},0.05,{'' if start == 6000 else 'Gamma'},400,2"
            for start in range(0, 36_000, 600)
        ]
        times = [r.arrival_ms / 1e3 for r in draw(client_set(lines), duration_s=36_000)]
        active = [time_s - 600 * (time_s > 6600) for time_s in times]
        assert not any(6000 <= time_s < 6600 for time_s in times)
        assert np.diff(active) == pytest.approx([900] * (len(times) - 1), rel=0.25)
        assert len(times) in {38, 39, 40}

    def test_another_client_changes_nobody_elses_draw(self, client_set):
        bursty = ["0,1.0,3.0,Gamma,0.11,9", "600,1.0,2.0,Weibull,0.5,0.5"]
        alone = draw(client_set(STEADY, bursty), duration_s=1200)
        together = draw(client_set(STEADY, bursty, STEADY), duration_s=1200)
        assert [r for r in together if not r.request_id.startswith("client2-")] == alone
        assert len(together) > len(alone)
        assert draw(client_set(STEADY, bursty, STEADY), duration_s=1200, clients=[0, 1]) == alone

    def test_a_longer_draw_begins_with_the_shorter(self, client_set):
        path = client_set(STEADY, ["0,1.0,3.0,Gamma,0.11,9", "600,1.0,2.0,Weibull,0.5,0.5", "1200,3.0,1.0,Gamma,1,1"])
        long = draw(path, start_s=100, duration_s=1500)
        for duration_s in (1, 250, 500, 501, 900):
            assert draw(path, start_s=100, duration_s=duration_s) == [
                r for r in long if r.arrival_ms < duration_s * 1e3
            ]
        assert draw(path, start_s=100, duration_s=1500, limit=17) == long[:17]

    def test_histograms_change_with_the_time_of_day(self, client_set):
        path = client_set(STEADY)
        late = {**FIELDS, "text_tokens": "{50: 1.0}"}
        (path / "chunk-0-dataset.json").write_text(json.dumps({"0": FIELDS, "600": late}))
        requests = draw(path, duration_s=1200)
        assert {(r.arrival_ms >= 600e3, p.length) for r in requests for p in r.parts if isinstance(p, TokenRun)} == {
            (False, 5),
            (False, 7),
            (True, 50),
        }

    def test_other_media_and_the_reasoning_sets_have_other_fields(self, client_set):
        fields = {
            "input_tokens": "{8: 1.0}",
            "output_tokens": "{3: 1.0}",
            "audio_count": "{1: 1.0}",
            "audio_tokens": "{25: 1.0}",
        }
        request = draw(client_set(STEADY, fields=fields))[0]
        assert request.parts == (MediaRef("client0-1/audio0", "audio", num_tokens=25), TokenRun("client0-1", 0, 8))

    def test_an_archive_reads_as_its_folder(self, client_set, tmp_path):
        path = client_set(STEADY)
        archive = tmp_path / "set.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("chunk-0-trace.csv", "chunk-0-dataset.json"):
                tar.add(path / name, f"mm/{name}")
        assert draw(archive) == draw(path)


class TestRefusals:
    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("600,2.0,1.0,Gam", "line 2 '600,2.0,1.0,Gam': cannot be used .4 cells, not 6"),
            ("600,-2.0,1.0,Gamma,1.0,0.5", "a rate is finite and at least 0"),
            ("600,nan,1.0,Gamma,1.0,0.5", "a rate is finite and at least 0"),
            ("601,2.0,1.0,Gamma,1.0,0.5", "multiple of 600 s"),
            ("600,2.0,1.0,Pareto,1.0,0.5", "the pattern 'Pareto' is neither Gamma nor Weibull"),
            ("600,2.0,1.0,Gamma,0,0.5", "the shape 0.0 is not at least"),
            ("600,2.0,1.0,Weibull,nan,0.5", "the shape nan is not at least"),
            ("600,two,1.0,Gamma,1.0,0.5", "could not convert"),
        ],
    )
    def test_a_bad_window(self, client_set, line, words):
        with pytest.raises(InputError, match=words):
            draw(client_set([STEADY[0], line]))

    @pytest.mark.parametrize(
        "text",
        [
            "__import__('os').getpid()",
            "{1: 0.5, 2",
            "[1, 2]",
            "{1: -1.0}",
            "{-1: 1.0}",
            "{1.5: 1.0}",
            "{}",
            "{1: 'x'}",
            "{'x': 1.0}",
        ],
    )
    def test_a_histogram_that_is_none(self, client_set, text):
        with pytest.raises(InputError, match="histogram of client 0, field 'text_tokens' from 0 s: is not a table"):
            draw(client_set(STEADY, fields={**FIELDS, "text_tokens": text}))

    def test_sets_that_are_none(self, client_set, tmp_path):
        with pytest.raises(InputError, match="no such folder or archive"):
            draw(tmp_path / "nowhere")
        with pytest.raises(InputError, match=r"holds no chunk-<client>-trace\.csv"):
            draw(tmp_path)
        path = client_set(STEADY, STEADY)
        with pytest.raises(InputError, match=r"clients \[7\]: are not in the ServeGen set"):
            draw(path, clients=[1, 7])
        (path / "chunk-1-dataset.json").write_text('{"0": {"text')
        with pytest.raises(InputError, match="is not a ServeGen dataset"):
            draw(path)
        (path / "chunk-1-dataset.json").unlink()
        with pytest.raises(InputError, match=r"chunk-1-dataset.json is missing"):
            draw(path)
        (path / "no.tar.gz").write_bytes(b"\x1f\x8bxx")
        with pytest.raises(InputError, match="cannot be read"):
            draw(path / "no.tar.gz")

    def test_time_beyond_the_set(self, client_set):
        with pytest.raises(
            InputError, match="start_s 2000 with duration_s 600: goes beyond the ServeGen set, which ends at 2400 s"
        ):
            draw(client_set(STEADY), start_s=2000)


@pytest.fixture(scope="module")
def published(shared_path):
    """A tenth of the published mm-image set's day, drawn once: per request images, tokens per image, text and output."""
    path = shared_path("data/servegen/mm-image")
    spec = {"kind": "servegen", "path": str(path), "duration_s": 86_400, "rate_scale": 0.1}
    images, tokens, text, output = [], [], [], []
    for request in build_workload(spec, path, 20):
        sizes = [part.num_tokens for part in request.parts if isinstance(part, MediaRef)]
        images.append(len(sizes))
        tokens.extend(sizes)
        text.append(sum(part.length for part in request.parts if isinstance(part, TokenRun)))
        output.append(request.output_tokens)
    return {"images": np.array(images), "tokens": np.array(tokens), "text": np.array(text), "output": np.array(output)}


class TestPublishedSet:
    """The summary of ServeGen's mm-image set, rate-weighted, computed from its files: mean, quantiles, maximum."""

    @pytest.mark.parametrize(
        ("name", "mean", "quantiles"),
        [
            ("images", 1.60, {50: 1, 75: 1, 90: 3, 95: 4, 99: 9, 100: 49}),
            ("tokens", 549, {50: 405, 75: 1150, 90: 1224, 95: 1242, 99: 1269, 100: 1280}),
            ("text", 572, {50: 106, 75: 1032, 90: 1914, 95: 2346, 99: 3064, 100: 4242}),
            ("output", 130, {50: 100, 75: 185, 90: 264, 95: 336, 99: 587, 100: 2000}),
        ],
    )
    def test_fields(self, published, name, mean, quantiles):
        drawn = published[name]
        assert drawn[drawn > 0].mean() == pytest.approx(mean, rel=0.03)
        for percent, value in quantiles.items():
            assert np.percentile(drawn, percent) == pytest.approx(value, rel=0.05, abs=1)

    def test_rate_and_shares(self, published):
        images = published["images"]
        assert len(images) / 8640 == pytest.approx(9.47, rel=0.03)
        for count, share in ((0, 0.006), (1, 0.798), (2, 0.066), (3, 0.076)):
            assert (images == count).mean() == pytest.approx(share, abs=0.006)

    def test_the_rates_of_the_day(self, shared_path):
        """Every window's drawn rate is its clients' summed rate, within the noise of bursts."""
        path = shared_path("data/servegen/mm-image")
        stated = np.zeros(144)
        for file in path.glob("chunk-*-trace.csv"):
            stated += np.genfromtxt(file, delimiter=",", usecols=1)
        assert (stated.min(), stated.max()) == pytest.approx((4.85, 13.29), abs=0.01)
        workload = build_workload(
            {"kind": "servegen", "path": str(path), "start_s": 36_000, "duration_s": 3600}, path, 3
        )
        drawn = np.histogram([r.arrival_ms / 1e3 for r in workload], np.arange(0, 3601, 600))[0] / 600
        assert drawn == pytest.approx(stated[60:66], rel=0.15)

    def test_only_literals_stand_in_the_histograms(self, shared_path):
        """The tables are read as literals; this checks one against a reading of its own."""
        path = shared_path("data/servegen/mm-image")
        fields = json.loads((path / "chunk-5-dataset.json").read_text())["0"]
        table = ast.literal_eval(fields["text_tokens"])
        spec = {"kind": "servegen", "path": str(path), "clients": [5], "duration_s": 3600}
        lengths = {p.length for r in build_workload(spec, path, 1) for p in r.parts if isinstance(p, TokenRun)}
        assert lengths
        assert lengths <= set(table)


class TestPublishedTraces:
    """Rows, spans and means of the public traces, as their descriptions state them."""

    @pytest.mark.parametrize(
        ("name", "rows", "span_s", "mean_in", "mean_out", "p99_in"),
        [("conv", 19_366, 3502, 1155, 211, 4142), ("code", 8819, 3436, 2048, 28, 7436)],
    )
    def test_azure(self, shared_path, name, rows, span_s, mean_in, mean_out, p99_in):
        path = shared_path(f"data/azure-llm-2023/AzureLLMInferenceTrace_{name}.csv.gz")
        requests = list(build_workload({"kind": "azure-csv", "path": str(path)}, path.parent, 1))
        lengths = [r.parts[0].length for r in requests]
        assert len(requests) == rows
        assert requests[-1].arrival_ms / 1e3 == pytest.approx(span_s, abs=0.5)
        assert np.mean(lengths) == pytest.approx(mean_in, abs=0.5)
        assert np.mean([r.output_tokens for r in requests]) == pytest.approx(mean_out, abs=0.5)
        assert np.percentile(lengths, 99) == pytest.approx(p99_in, rel=0.005)

    @pytest.mark.parametrize(
        ("name", "rows", "mean_in", "mean_out", "blocks", "repeats"),
        [("conversation", 12_031, 12_035, 343, 182_790, 0.366), ("synthetic", 3993, 15_325, 149, 43_924, 0.640)],
    )
    def test_mooncake(self, shared_path, name, rows, mean_in, mean_out, blocks, repeats):
        path = shared_path(f"data/mooncake-fast25/{name}_trace.jsonl.gz")
        count, text, output, references, distinct = 0, 0, 0, 0, set()
        for request in build_workload({"kind": "mooncake-jsonl", "path": str(path)}, path.parent, 1):
            count += 1
            text += sum(run.length for run in request.parts)
            output += request.output_tokens
            references += len(request.parts)
            distinct.update(run.content for run in request.parts)
        assert (count, len(distinct)) == (rows, blocks)
        assert (text / count, output / count) == pytest.approx((mean_in, mean_out), abs=0.6)
        assert 1 - len(distinct) / references == pytest.approx(repeats, abs=0.0005)
