"""What `epdsim run` does: load, run with progress on stderr, print, judge."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epdsim.core.files import check_apart, check_place
from epdsim.cost.profile import load_profile
from epdsim.events import Event, NdjsonWriter, PerfettoWriter, RequestFailed, RequestFinished, Sink
from epdsim.report.figures import check_installed
from epdsim.report.html import write_html
from epdsim.report.metrics import RunMetrics
from epdsim.report.observer import RunObserver
from epdsim.report.table import console, millis, print_text
from epdsim.scenario.claims import Verdict, compare, judge
from epdsim.scenario.judged import as_plain, summary, violations
from epdsim.scenario.loader import Scenario, files_named, load_scenario
from epdsim.scenario.points import Point, described
from epdsim.scenario.runner import RunResult, ScenarioResult, run_scenario
from epdsim.scenario.tables import assumptions, comparison_tables, run_tables, scenario_report, write_csv

if TYPE_CHECKING:
    from rich.status import Status

_SHOW_EVERY = 500


def load(path: Path, overrides: Sequence[str], profile: Path | None) -> Scenario:
    """A scenario with what the command line changes in it."""
    settings = list(overrides)
    if profile is not None:
        measured = dataclasses.asdict(load_profile(profile))
        settings += [f"costs.broadcast.{name}={json.dumps(value)}" for name, value in measured.items()]
    return load_scenario(path, settings)


def run_simulated(
    path: Path,
    overrides: Sequence[str],
    profile: Path | None,
    files: OutputFiles,
    *,
    seed: int | None,
    as_json: bool,
    is_judged: bool = True,
) -> bool:
    """Run a scenario file with size-only payloads; whether every claim in it holds, and every property that its runs tested."""
    files.check()
    scenario = load(path, overrides, profile)
    check_apart(files.named(), [path, *filter(None, [profile]), *files_named(scenario.file.data, scenario.folder)])
    observers: dict[str, RunObserver | None] = {}
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(len(scenario.points)))
        name, about = scenario.spec.name, {"seed": scenario.spec.seed if seed is None else seed}
        writer = files.events and stack.enter_context(NdjsonWriter(files.events, {"scenario": name, **about}))
        timeline = files.perfetto and stack.enter_context(PerfettoWriter(files.perfetto))

        def sinks_for(point: Point) -> Sequence[Sink]:
            if timeline:
                timeline.start(described(point) or name)
            observer = observers[described(point)] = RunObserver() if files.html else None
            return [sink for sink in (progress.is_shown and progress, writer, timeline, observer) if sink]

        result = run_scenario(
            scenario,
            seed=seed,
            sinks_for=sinks_for,
            on_run=progress.start,
            wants_detail=writer is not None,
            is_judged=is_judged,
        )
    if files.csv is not None:
        write_csv(files.csv, result)
    verdicts = judge(result)
    if files.html is not None:
        seen = {at: observer for at, observer in observers.items() if observer}
        write_html(files.html, scenario_report(result, verdicts, seen))
    if as_json:
        sys.stdout.write(as_json_text(result, verdicts))
    else:
        print_result(result, verdicts)
    return all(verdict.holds for verdict in verdicts) and not violations(result.runs)


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Files that a run leaves besides what it prints; None for those not wanted.

    Attributes:
        events: Every event, as NDJSON.
        html: Tables and figures in one self-contained page.
        csv: A row per run and figure.
        perfetto: Steps, encoder runs, requests and queues on a time line.
    """

    events: Path | None = None
    html: Path | None = None
    csv: Path | None = None
    perfetto: Path | None = None

    def named(self) -> dict[str, Path]:
        """Those that are wanted, by option."""
        wanted = {"--events": self.events, "--html": self.html, "--csv": self.csv, "--perfetto": self.perfetto}
        return {option: path for option, path in wanted.items() if path is not None}

    def check(self) -> None:
        """See that each can be written, before the work.

        Raises:
            InputError: One cannot, or what draws the figures is not installed.
        """
        for path in self.named().values():
            check_place(path, str(path))
        if self.html is not None:
            check_installed()


class Progress:
    """One line on stderr: which run, how many requests ended; silent where stderr is no terminal."""

    def __init__(self, num_runs: int, name: str = "") -> None:
        self._status = _status() if sys.stderr.isatty() else None
        self._num_runs, self._index, self._ended, self._told = num_runs, 0, 0, ""
        self._name = f"{name}: " if name else ""

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it."""
        return self._status is not None

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
        if self._status is None:
            return
        where = f"{self._name}run {self._index} of {self._num_runs}" + (f" ({self._told})" if self._told else "")
        from rich.text import Text  # noqa: PLC0415 - as in _status

        self._status.update(Text(f"{where}: {self._ended:,} requests done, simulated {millis(time_ms)}"))

    def __enter__(self) -> Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _status() -> Status:
    from rich.console import Console  # noqa: PLC0415 - where nobody looks on, nothing is drawn

    return Console(stderr=True).status("")


def as_json_text(result: ScenarioResult, verdicts: Sequence[Verdict]) -> str:
    """Everything a run came to, as JSON with sorted keys: the same seed gives the same bytes."""
    comparisons = compare(result)
    body = {
        "scenario": result.scenario.spec.name,
        "seed": result.seed,
        "assumptions": assumptions(result),
        "fit": dataclasses.asdict(result.fit) if result.fit else None,
        "runs": [
            {"at": run.point, "metrics": _figures(run.metrics), "properties": as_plain(run.judged)}
            for run in result.runs
        ],
        "published": [dataclasses.asdict(row) | {"deviation_percent": row.deviation_percent} for row in comparisons],
        "claims": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    return json.dumps(body, indent=2, sort_keys=True) + "\n"


def _figures(metrics: RunMetrics) -> dict[str, object]:
    derived = ("request_throughput_per_s", "token_throughput_per_s", "prefix_hit_rate")
    return dataclasses.asdict(metrics) | {name: getattr(metrics, name) for name in derived}


def print_result(result: ScenarioResult, verdicts: Sequence[Verdict]) -> None:
    """Tables for a person: the runs, the published figures beside them, the claims."""
    spec, out, comparisons = result.scenario.spec, console(), compare(result)
    out.print(f"{spec.name}: {spec.title}" if spec.title else spec.name, style="bold")
    if spec.source:
        out.print(f"source: {spec.source}")
    for line in assumptions(result):
        out.print(f"assumed: {line}")
    for table in run_tables(result):
        print_text(table)
    if spec.columns:
        _print_not_served(result.runs)
    for table in comparison_tables(comparisons, result):
        print_text(table)
    if told := summary(result.runs):
        out.print(f"judged  {told}")
    for violation in violations(result.runs):
        out.print(f"VIOLATED  {violation.sentence}", soft_wrap=True)
    print_verdicts(verdicts)


def _print_not_served(runs: Sequence[RunResult]) -> None:
    """Why requests failed or were refused: the chosen columns need not show that any did."""
    for run in runs:
        place = f"{described(run.point)}: " if run.point else ""
        for reason, count in run.metrics.failures.items():
            console().print(f"not served  {place}{count:,} of {run.metrics.injected:,} requests: {reason}")


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A line per claim."""
    for verdict in verdicts:
        console().print(f"{'holds' if verdict.holds else 'FAILS'}  {verdict.sentence}")
