"""How figures are written for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.events import FirstToken, RequestArrived, RequestFailed, RequestFinished
from epdsim.report.sink import MetricsSink
from epdsim.report.table import latencies_are_of, millis, nbytes, print_table, summary_rows, summary_table


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (15_482_880, "15.5 MB"), (4.05e8, "405 MB"), (1.82e9, "1.82 GB"), (3e12, "3 TB")],
)  # fmt: skip
def test_bytes_have_decimal_units_and_three_digits(count, text):
    assert nbytes(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0 ms"), (9999.9, "9,999.9 ms"), (10_000, "10.0 s"), (3.6e6, "3,600.0 s")]
)
def test_milliseconds_become_seconds_from_ten_of_them_on(value, text):
    assert millis(value) == text


def test_columns_of_figures_stand_right_and_text_left(capsys):
    print_table("title", ["name", "figure"], [["a", "1"], ["long name", "1,000"]], "caption")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "title"
    assert lines[-1].strip() == "caption"
    assert "│ a         │      1 │" in lines
    assert "│ long name │  1,000 │" in lines


def test_markup_in_a_name_is_shown_and_not_obeyed(capsys):
    print_table("[bold]title[/bold]", ["[red]name"], [["[i]x"]])
    printed = capsys.readouterr().out
    assert "[red]name" in printed
    assert "[i]x" in printed


def test_a_summary_tells_the_books_first_and_reasons_beside_the_latencies():
    sink = MetricsSink()
    sink(RequestArrived(0.0, "o", "r", 1))
    sink(RequestFailed(1.0, "o", "r", "too long", refused=True))
    rows = summary_rows(sink.result())
    assert rows[0] == ("requests", "1 = 0 completed + 0 failed + 1 refused + 0 unfinished")
    assert rows[2] == ("not served", "1 x: too long")
    assert not {"TTFT", "media items", "embeddings loaded (EC)", "latencies are of"} & {label for label, _ in rows}


def test_latencies_of_some_say_of_whom():
    sink = MetricsSink()
    for name in ("served", "refused"):
        sink(RequestArrived(0.0, "o", name, 1))
    sink(RequestFailed(1.0, "o", "refused", "too long", refused=True))
    sink(FirstToken(2.0, "p", "served"))
    sink(RequestFinished(2.0, "p", "served", 1))
    labels = [label for label, _ in summary_rows(sink.result())]
    assert labels[2:5] == ["latencies are of", "not served", "TTFT"]
    told = "the 1 of 2 requests that completed, not of 1 refused"
    assert latencies_are_of(sink.result()) == dict(summary_rows(sink.result()))["latencies are of"] == told


def test_what_utilisation_counts_is_told_where_there_is_any():
    sink = MetricsSink()
    assert summary_table("run", sink.result()).caption == ""
    busy = replace(sink.result(), duration_ms=10.0, busy_ms={"engine-0": 10.0})
    table = summary_table("run", busy)
    assert ("utilisation engine-0", "100.0 %") in table.rows
    assert (
        table.caption == "utilisation: share of the time in steps or encoder runs; steps that only generate count too"
    )


def test_latencies_of_all_say_nothing_more():
    sink = MetricsSink()
    sink(RequestArrived(0.0, "o", "r", 1))
    sink(FirstToken(2.0, "p", "r"))
    sink(RequestFinished(2.0, "p", "r", 1))
    assert latencies_are_of(sink.result()) == ""
    assert {"latencies are of", "not served"}.isdisjoint(dict(summary_rows(sink.result())))
