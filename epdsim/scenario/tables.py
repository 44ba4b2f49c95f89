"""A scenario's results as tables and CSV; the terminal and the page show the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.report.metrics import RunMetrics
from epdsim.report.table import TextTable, millis, nbytes, summary_table
from epdsim.scenario.claims import Comparison
from epdsim.scenario.points import Point, described, flat_figures, metric
from epdsim.scenario.runner import RunResult
from epdsim.scenario.schema import AxisValue
from epdsim.scenario.study import ScenarioResult


def assumptions(result: ScenarioResult) -> list[str]:
    """Those of the file, then those of the workload; one that holds for some runs only says for which."""
    lines = dict.fromkeys(line for run in result.runs for line in run.assumptions)
    return [*result.scenario.spec.assumptions, *(_where(line, result.runs) + line for line in lines)]


def _where(line: str, runs: Sequence[RunResult]) -> str:
    """The axis values that all runs with this assumption have in common, and no other run has."""
    of_line = [set(run.point.items()) for run in runs if line in run.assumptions]
    others = [set(run.point.items()) for run in runs if line not in run.assumptions]
    shared = set.intersection(*of_line).difference(*others) if others else set[tuple[str, AxisValue]]()
    told = described(dict(sorted(shared, key=str)))
    return f"at {told}: " if told else ""


def run_tables(result: ScenarioResult) -> list[TextTable]:
    """The runs: one table with a row each where the file chooses columns, else a summary of each."""
    columns = result.scenario.spec.columns
    if not columns:
        return [summary_table(described(run.point) or "run", run.metrics) for run in result.runs]
    tables: list[TextTable] = []
    for places in _related([run.point for run in result.runs]):
        points = [result.runs[place].point for place in places]
        cells = [[_cell(result.runs[place].metrics, name) for name in columns] for place in places]
        tables.append(TextTable("runs", [*axes_of(points), *columns], _beside(points, cells)))
    return tables


def _related(points: Sequence[Point]) -> list[list[int]]:
    """Places of points that one table can hold: those with all the axes of its first point."""
    tables: list[list[int]] = []
    for place, point in enumerate(points):
        home = next((table for table in tables if points[table[0]].keys() <= point.keys()), None)
        if home is None:
            tables.append([place])
        else:
            home.append(place)
    return tables


def axes_of(points: Sequence[Point]) -> list[str]:
    """All axes of some points, in order of first occurrence."""
    return list(dict.fromkeys(axis for point in points for axis in point))


def _beside(points: Sequence[Point], cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows of axis values, then figures."""
    axes = axes_of(points)
    return [[str(point.get(axis, "")) for axis in axes] + list(row) for point, row in zip(points, cells, strict=True)]


def _cell(metrics: RunMetrics, name: str) -> str:
    """A figure for the table; a run in which no request completed has no latencies."""
    try:
        return _shown(name, metric(metrics, name))
    except InputError:
        return "none"


def _shown(name: str, value: float) -> str:
    formats: list[tuple[str, Callable[[float], str]]] = [
        ("_ms", millis),
        ("bytes", nbytes),
        ("rate", lambda share: f"{100 * share:.1f} %"),
        ("per_s", lambda rate: f"{rate:,.2f}"),
    ]
    head = name.split(".", maxsplit=1)[0]
    for mark, form in formats:
        if mark in head:
            return form(value)
    return f"{value:,g}"


def comparison_tables(comparisons: Sequence[Comparison], result: ScenarioResult) -> list[TextTable]:
    """Published figures and the simulated ones, with the fitted constants under the last."""
    tables: list[TextTable] = []
    for places in _related([row.at for row in comparisons]):
        rows = [comparisons[place] for place in places]
        points = [row.at for row in rows]
        columns = [*axes_of(points), "metric", "published", "simulated", "deviation", "point"]
        tables.append(
            TextTable("published beside simulated", columns, _beside(points, [_compared(row) for row in rows]))
        )
    if tables and result.fit:
        chosen = "; ".join(f"{name}: {value:.6g}" for name, value in result.fit.chosen.items())
        caption = f"fitted constants: {chosen}; rms {result.fit.rms_percent:.1f} % on the fitted points"
        tables[-1] = replace(tables[-1], caption=caption)
    return tables


def _compared(row: Comparison) -> list[str]:
    simulated = f"{row.simulated:,.1f}" if row.simulated >= 10 else f"{row.simulated:.4g}"
    return [row.metric, f"{row.published:,.10g}", simulated, f"{row.deviation_percent:+.1f} %", row.role]


def write_csv(path: Path, result: ScenarioResult) -> None:
    """One row per run and figure: the axis values, the figure's name as `columns` takes it, its value.

    Raises:
        InputError: The file cannot be written.
    """
    axes = axes_of([run.point for run in result.runs])
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*axes, "figure", "value"])
    for run in result.runs:
        at = [run.point.get(axis, "") for axis in axes]
        rows.writerows([*at, name, value] for name, value in flat_figures(run.metrics).items())
    with whole_file(path, f"table {str(path)!r}") as file:
        file.write(text.getvalue().encode())
