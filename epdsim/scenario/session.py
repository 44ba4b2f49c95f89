"""What `epdsim run` does: load, run with progress on stderr, print, judge."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from epdsim.core.errors import InputError
from epdsim.core.files import check_apart, check_place
from epdsim.core.records import record
from epdsim.events import NdjsonWriter, PerfettoWriter, Sink
from epdsim.report.metrics import RunMetrics
from epdsim.report.table import console, latencies_are_of, print_text
from epdsim.scenario.claims import Verdict, compare, judge
from epdsim.scenario.jobs import Listeners, loaded_once
from epdsim.scenario.judged import Violation, as_plain, summary, violations
from epdsim.scenario.loader import Scenario, files_named
from epdsim.scenario.points import Point, described
from epdsim.scenario.progress import SweepProgress
from epdsim.scenario.runner import RunResult
from epdsim.scenario.study import ScenarioResult, run_scenario
from epdsim.scenario.sweep import Sweep
from epdsim.scenario.tables import assumptions, comparison_tables, run_tables, write_csv


def load(path: Path, overrides: Sequence[str], profile: Path | None) -> Scenario:
    """A scenario with what the command line changes in it."""
    settings = list(overrides)
    if profile is not None:
        from epdsim.cost.profile import load_profile  # noqa: PLC0415 - few runs have one

        measured = dataclasses.asdict(load_profile(profile))
        settings += [f"costs.broadcast.{name}={json.dumps(value)}" for name, value in measured.items()]
    return loaded_once(path, tuple(settings))


def run_simulated(
    path: Path,
    overrides: Sequence[str],
    profile: Path | None,
    files: OutputFiles,
    sweep: Sweep,
    *,
    seed: int | None,
    as_json: bool,
) -> bool:
    """Run a scenario file with size-only payloads; whether every claim in it holds, and every property that its runs tested."""
    files.check(sweep)
    scenario = load(path, overrides, profile)
    check_apart(files.named(), [path, *filter(None, [profile]), *files_named(scenario.file.data, scenario.folder)])
    gc.freeze()  # what is imported and loaded by now lives to the end: no search for cycles in the runs need pass through it
    with ExitStack() as stack:
        listeners = files.listeners(stack, scenario, scenario.spec.seed if seed is None else seed)
        run_jobs = stack.enter_context(sweep.started(stack.enter_context(SweepProgress())))
        result = run_scenario(
            scenario,
            seed=seed,
            run_jobs=run_jobs,
            listeners=listeners,
            is_judged=sweep.is_judged,
            wants_picture=files.html is not None,
        )
    if files.csv is not None:
        write_csv(files.csv, result)
    verdicts = judge(result)
    if files.html is not None:
        _write_page(files.html, result, verdicts)
    if as_json:
        sys.stdout.write(as_json_text(result, verdicts))
    else:
        print_result(result, verdicts)
    return all(verdict.holds for verdict in verdicts) and not violations(result.runs)


def _write_page(path: Path, result: ScenarioResult, verdicts: Sequence[Verdict]) -> None:
    from epdsim.report.html import write_html  # noqa: PLC0415 - few runs are drawn
    from epdsim.scenario.run_page import scenario_report  # noqa: PLC0415 - as above

    write_html(path, scenario_report(result, verdicts))


@record
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

    def check(self, sweep: Sweep) -> None:
        """See that each can be written, before the work.

        Raises:
            InputError: One cannot, or what draws the figures is not installed, or events are wanted of runs that need not be run.
        """
        if sweep.store is not None:
            for option in self.named().keys() & {"--events", "--perfetto"}:
                rule = "a run that is taken from the store has no events to write"
                raise InputError(f"{option} with --store", rule, "leave one of them out")
        for path in self.named().values():
            check_place(path, str(path))
        if self.html is not None:
            from epdsim.report.figures import check_installed  # noqa: PLC0415 - as in _write_page

            check_installed()

    def listeners(self, stack: ExitStack, scenario: Scenario, seed: int) -> Listeners | None:
        """Who writes the events of a scenario's runs; None where they are not wanted. What writes is closed with the stack."""
        if self.events is None and self.perfetto is None:
            return None
        name = scenario.spec.name
        writer = self.events and stack.enter_context(NdjsonWriter(self.events, {"scenario": name, "seed": seed}))
        timeline = self.perfetto and stack.enter_context(PerfettoWriter(self.perfetto))

        def sinks_for(point: Point) -> Sequence[Sink]:
            if timeline:
                timeline.start(described(point) or name)
            return [sink for sink in (writer, timeline) if sink]

        return Listeners(sinks_for, wants_detail=writer is not None)


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
    derived = ("request_throughput_per_s", "token_throughput_per_s", "prefix_hit_rate", "unserved")
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
    print_judged(summary(result.runs), violations(result.runs))
    print_verdicts(verdicts)


def _print_not_served(runs: Sequence[RunResult]) -> None:
    """Why requests failed or were refused, and of whom the latencies are then: the chosen columns need not show that any did."""
    for run in runs:
        place = f"{described(run.point)}: " if run.point else ""
        if run.metrics.unserved and (told := latencies_are_of(run.metrics)):
            console().print(f"latencies   {place}of {told}")
        for reason, count in run.metrics.failures.items():
            console().print(f"not served  {place}{count:,} of {run.metrics.injected:,} requests: {reason}")


def print_judged(told: str, broken: Sequence[Violation]) -> None:
    """What the monitors say of runs: a line, and one per violation; nothing when nobody asked them."""
    if told:
        console().print(f"judged  {told}")
    for violation in broken:
        console().print(f"VIOLATED  {violation.sentence}", soft_wrap=True)


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A line per claim."""
    for verdict in verdicts:
        console().print(f"{'holds' if verdict.holds else 'FAILS'}  {verdict.sentence}")
