"""What `epdsim run` does: load, run with progress on stderr, print, judge."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.text import Text

from epdsim.core.errors import InputError
from epdsim.cost.profile import load_profile
from epdsim.events import Event, NdjsonWriter, RequestFailed, RequestFinished, Sink
from epdsim.report.metrics import RunMetrics
from epdsim.report.table import console, millis, nbytes, print_table, summary_rows
from epdsim.scenario.claims import Comparison, Verdict, compare, judge
from epdsim.scenario.loader import Scenario, load_scenario
from epdsim.scenario.points import Point, described, metric
from epdsim.scenario.runner import RunResult, ScenarioResult, run_scenario
from epdsim.scenario.schema import AxisValue

_SHOW_EVERY = 500


def load(path: Path, overrides: Sequence[str], profile: Path | None) -> Scenario:
    """A scenario with what the command line changes in it."""
    settings = list(overrides)
    if profile is not None:
        measured = dataclasses.asdict(load_profile(profile))
        settings += [f"costs.broadcast.{name}={json.dumps(value)}" for name, value in measured.items()]
    return load_scenario(path, settings)


def run_simulated(
    path: Path, overrides: Sequence[str], events: Path | None, profile: Path | None, *, seed: int | None, as_json: bool
) -> bool:
    """Run a scenario file with size-only payloads; whether every claim in it holds."""
    scenario = load(path, overrides, profile)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(len(scenario.points)))
        sinks: list[Sink] = [progress]
        if events is not None:
            about = {"scenario": scenario.spec.name, "seed": scenario.spec.seed if seed is None else seed}
            sinks.append(stack.enter_context(NdjsonWriter(events, about)))
        result = run_scenario(
            scenario, seed=seed, sinks_for=lambda _: sinks, on_run=progress.start, wants_detail=events is not None
        )
    verdicts = judge(result)
    if as_json:
        sys.stdout.write(as_json_text(result, verdicts))
    else:
        print_result(result, verdicts)
    return all(verdict.holds for verdict in verdicts)


class Progress:
    """One line on stderr: which run, how many requests ended; silent where stderr is no terminal."""

    def __init__(self, num_runs: int, name: str = "") -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("")
        self._num_runs, self._index, self._ended, self._told = num_runs, 0, 0, ""
        self._name = f"{name}: " if name else ""

    def start(self, point: Point) -> None:
        """A run begins."""
        self._index += 1
        self._ended = 0
        self._told = described(point)
        self._show(0.0)

    def __call__(self, event: Event) -> None:
        """Count what ends."""
        if isinstance(event, (RequestFinished, RequestFailed)):
            self._ended += 1
            if self._ended % _SHOW_EVERY == 0:
                self._show(event.time_ms)

    def _show(self, time_ms: float) -> None:
        where = f"{self._name}run {self._index} of {self._num_runs}" + (f" ({self._told})" if self._told else "")
        self._status.update(Text(f"{where}: {self._ended:,} requests done, simulated {millis(time_ms)}"))

    def __enter__(self) -> Progress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()


def as_json_text(result: ScenarioResult, verdicts: Sequence[Verdict]) -> str:
    """Everything a run came to, as JSON with sorted keys: the same seed gives the same bytes."""
    comparisons = compare(result)
    body = {
        "scenario": result.scenario.spec.name,
        "seed": result.seed,
        "assumptions": _assumptions(result),
        "fit": dataclasses.asdict(result.fit) if result.fit else None,
        "runs": [{"at": run.point, "metrics": _figures(run.metrics)} for run in result.runs],
        "published": [dataclasses.asdict(row) | {"deviation_percent": row.deviation_percent} for row in comparisons],
        "claims": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    return json.dumps(body, indent=2, sort_keys=True) + "\n"


def _figures(metrics: RunMetrics) -> dict[str, object]:
    derived = ("request_throughput_per_s", "token_throughput_per_s", "prefix_hit_rate")
    return dataclasses.asdict(metrics) | {name: getattr(metrics, name) for name in derived}


def _assumptions(result: ScenarioResult) -> list[str]:
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


def print_result(result: ScenarioResult, verdicts: Sequence[Verdict]) -> None:
    """Tables for a person: the runs, the published figures beside them, the claims."""
    spec, out, comparisons = result.scenario.spec, console(), compare(result)
    out.print(f"{spec.name}: {spec.title}" if spec.title else spec.name, style="bold")
    if spec.source:
        out.print(f"source: {spec.source}")
    for line in _assumptions(result):
        out.print(f"assumed: {line}")
    if spec.columns:
        _print_runs(result)
        _print_not_served(result.runs)
    else:
        for run in result.runs:
            title = described(run.point) or "run"
            print_table(title, ["figure", "value"], summary_rows(run.metrics))
    if comparisons:
        print_comparisons(comparisons, result)
    print_verdicts(verdicts)


def _print_runs(result: ScenarioResult) -> None:
    columns = result.scenario.spec.columns
    points = [run.point for run in result.runs]
    figures = [[_cell(run.metrics, name) for name in columns] for run in result.runs]
    print_table("runs", [*_axes(points), *columns], _beside(points, figures))


def _print_not_served(runs: Sequence[RunResult]) -> None:
    """Why requests failed or were refused: the chosen columns need not show that any did."""
    for run in runs:
        place = f"{described(run.point)}: " if run.point else ""
        for reason, count in run.metrics.failures.items():
            console().print(f"not served  {place}{count:,} of {run.metrics.injected:,} requests: {reason}")


def _axes(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(axis for point in points for axis in point))


def _beside(points: Sequence[Point], figures: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows of axis values, then figures."""
    axes = _axes(points)
    return [[str(point.get(axis, "")) for axis in axes] + list(row) for point, row in zip(points, figures, strict=True)]


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


def _digits(value: float) -> str:
    """Four digits at least, and every digit before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def print_comparisons(comparisons: Sequence[Comparison], result: ScenarioResult) -> None:
    """A table of published figures and the simulated ones, with the fitted constants under it."""
    figures = [
        [
            row.metric,
            _digits(row.published),
            _digits(row.simulated),
            f"{row.deviation_percent:+.1f} %",
            row.role,
        ]
        for row in comparisons
    ]
    points = [row.at for row in comparisons]
    columns = [*_axes(points), "metric", "published", "simulated", "deviation", "point"]
    caption = ""
    if result.fit:
        chosen = "; ".join(f"{name}: {value:.6g}" for name, value in result.fit.chosen.items())
        caption = f"fitted constants: {chosen}; rms {result.fit.rms_percent:.1f} % on the fitted points"
    print_table("published beside simulated", columns, _beside(points, figures), caption)


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A line per claim."""
    for verdict in verdicts:
        console().print(f"{'holds' if verdict.holds else 'FAILS'}  {verdict.sentence}")
