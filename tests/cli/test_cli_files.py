"""The files that `epdsim run` leaves: page, table, time line; whole, self-contained, and equal for equal seeds."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from epdsim.report import figures


def test_the_page_shows_everything_and_fetches_nothing(epdsim):
    assert epdsim("run", "small.yaml", "--html", "one.html").code == 0
    page = Path("one.html").read_text()
    for heading in ("Claims", "runs", "Latency", "Where TTFT goes", "Bytes", "Load over time"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 6, "one each, and the load of three runs"
    assert "linear costs stand in for every device" in page
    assert 'class="holds"' in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", "href")), "references stay in the page"
    assert epdsim("run", "small.yaml", "--html", "two.html").code == 0
    assert Path("two.html").read_text() == page


def test_words_of_a_scenario_are_no_markup(epdsim):
    text = Path("small.yaml").read_text()
    Path("odd.yaml").write_text(text.replace("title: A dozen", "title: <b>A</b> & a dozen"))
    assert epdsim("run", "odd.yaml", "--html", "odd.html").code == 0
    assert "&lt;b&gt;A&lt;/b&gt; &amp; a dozen" in Path("odd.html").read_text()


def test_figures_are_drawn_against_an_axis_of_three_numbers(epdsim):
    assert (
        epdsim("run", "small.yaml", "--set", "runs=[{topology: [apart], ranks: [1, 2, 4]}]", "--html", "a.html").code
        == 0
    )
    assert "<h2>Against what varies</h2>" in Path("a.html").read_text()


def test_the_table_has_every_figure_of_every_run(epdsim):
    done = epdsim("run", "small.yaml", "--csv", "out.csv", "--json")
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert set(rows[0]) == {"topology", "ranks", "figure", "value"}
    runs = {(run["at"]["topology"], str(run["at"]["ranks"])): run["metrics"] for run in json.loads(done.out)["runs"]}
    assert {(row["topology"], row["ranks"]) for row in rows} == set(runs)
    for row in rows:
        value = runs[row["topology"], row["ranks"]]
        for key in row["figure"].split(".", maxsplit=1):
            value = value[key]
        assert float(row["value"]) == value, row
    assert {"ttft_ms.p99", "prefix_hit_rate", "busy_ms.encode-0", "ttft_by_stage_ms.prefill"} <= {
        row["figure"] for row in rows
    }


def test_the_time_line_is_a_trace_with_a_process_per_run(epdsim):
    assert epdsim("run", "small.yaml", "--perfetto", "trace.json").code == 0
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "topology apart, ranks 2", "topology together, ranks 2", "topology apart, ranks 4",
    ]  # fmt: skip
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if "tid" in event} == named
    ends = [(event["pid"], event["id2"]["local"], event["ph"]) for event in events if event["ph"] in "be"]
    assert len(ends) == len(set(ends)) == 2 * 3 * 12
    busy = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in busy)
    by_track = {}
    for event in busy:
        by_track.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert start >= end - 0.01, "an instance does one thing at a time"


@pytest.mark.parametrize("option", ["--html", "--csv", "--perfetto", "--events"])
def test_a_place_that_cannot_be_written_is_told_before_the_run(epdsim, option):
    done = epdsim("run", "small.yaml", option, "missing/file")
    assert (done.code, done.out) == (2, "")
    assert "its folder does not exist" in done.err
    done = epdsim("run", "small.yaml", "--payload", "real", option, "file")
    assert done.code == 2
    assert f"{option} with --payload real" in done.err


def test_without_matplotlib_a_page_is_refused_with_the_remedy(epdsim, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    done = epdsim("run", "small.yaml", "--html", "a.html")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'epdsim[report]'" in done.err
    assert not Path("a.html").exists()
