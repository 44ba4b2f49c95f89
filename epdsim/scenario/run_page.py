"""The page of a run: its tables, and figures drawn of it."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.report import figures
from epdsim.report.figures import DrawnRun
from epdsim.report.html import Report, ReportSection
from epdsim.scenario.claims import Verdict, compare
from epdsim.scenario.judged import summary, violations
from epdsim.scenario.points import described, metric
from epdsim.scenario.runner import RunResult
from epdsim.scenario.schema import AxisValue
from epdsim.scenario.study import ScenarioResult
from epdsim.scenario.tables import assumptions, axes_of, comparison_tables, run_tables

_DRAWN_AGAINST_AXES = ("ttft_ms.p99", "tpot_ms.p99", "request_throughput_per_s")
"""Figures drawn against a numeric axis of a scenario that chooses no columns."""


def scenario_report(result: ScenarioResult, verdicts: Sequence[Verdict]) -> Report:
    """What the page shows.

    Args:
        result: All runs, each with its picture.
        verdicts: Claims, judged.
    """
    spec, comparisons = result.scenario.spec, compare(result)
    tables = [*run_tables(result), *comparison_tables(comparisons, result)]
    runs = [DrawnRun(described(run.point), run.metrics, run.picture) for run in result.runs if run.picture is not None]
    sections = [
        ReportSection(
            "Latency", [("Share of completed requests with at most this latency.", figures.latency_cdf(runs))]
        ),
        ReportSection("Where TTFT goes", [("", figures.ttft_stages(runs))]),
        ReportSection("Bytes", [("", figures.bytes_by_leg(runs))]),
        ReportSection("Load over time", [(run.name, figures.loads(run)) for run in runs[: figures.MOST_LINES]]),
    ]
    curves = _against_axes(result)
    if curves:
        sections.insert(0, ReportSection("Against what varies", curves))
    title, told = spec.title, assumptions(result)
    judged, broken = summary(result.runs), violations(result.runs)
    return Report(spec.name, title, spec.source, result.seed, told, verdicts, judged, broken, tables, sections)


def _against_axes(result: ScenarioResult) -> list[tuple[str, str]]:
    """Each figure of the file's columns against each axis with three numbers or more."""
    drawn: list[tuple[str, str]] = []
    for axis in axes_of([run.point for run in result.runs]):
        along = [run for run in result.runs if _is_number(run.point.get(axis))]
        if len({run.point[axis] for run in along}) < 3:
            continue
        for name in result.scenario.spec.columns or _DRAWN_AGAINST_AXES:
            series = _series(along, axis, name)
            if series:
                drawn.append(("", figures.against_axis(axis, series, name)))
    return drawn


def _series(runs: Sequence[RunResult], axis: str, name: str) -> dict[str, list[tuple[float, float]]]:
    """Points of a figure along an axis, by the values of the other axes."""
    series: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        others = described({other: value for other, value in run.point.items() if other != axis})
        try:
            value = metric(run.metrics, name)
        except InputError:
            continue
        series.setdefault(others, []).append((float(run.point[axis] or 0), value))
    return {others: points for others, points in series.items() if len(points) > 1}


def _is_number(value: AxisValue) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
