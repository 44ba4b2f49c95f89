"""The answers of a plan as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress

from epdsim.core.errors import InputError
from epdsim.report import figures
from epdsim.report.figures import DrawnFleet, DrawnRun
from epdsim.report.html import Report, ReportSection
from epdsim.report.table import TextTable, summary_table
from epdsim.scenario.judged import summary
from epdsim.scenario.loader import Scenario
from epdsim.scenario.plan_curves import drawn as drawn_curves
from epdsim.scenario.plan_curves import surroundings_tables
from epdsim.scenario.plan_tables import Answer, answer_table, assumptions, sentences, sizes
from epdsim.scenario.planning import Plan, Trial, short_name
from epdsim.scenario.points import described, metric

_FLEETS = (
    "Each fleet by its GPUs, and its worst figure against the bound of it: below 1 it meets the level. On the busiest stretch "
    "alone a fleet may be above and still meet it on all of the traffic. A fleet's name is its instances of {pools}."
)

_PARETO = "The answer and the fleets next to it: what one instance more or less of each kind brings."


def plan_report(scenario: Scenario, seed: int, answers: Sequence[Answer]) -> Report:
    """What the page shows of answers that were run once more to be drawn."""
    spec = scenario.spec
    tables: list[TextTable] = []
    sections: list[ReportSection] = []
    for one in answers:
        tables.append(dataclasses.replace(answer_table(one, spec.slo), caption="; ".join(sentences(one, spec.slo))))
        tables += _answer_tables(one)
        sections += _sections(one, spec.slo)
    runs, broken = (
        [run for one in answers for run in one.runs],
        [broken for one in answers for broken in one.violations],
    )
    told = assumptions(scenario, answers)
    return Report(spec.name, spec.title, spec.source, seed, told, (), summary(runs), broken, tables, sections)


def _where(one: Answer) -> str:
    stretch_s = one.traffic.stretch_s
    return f"on the busiest {stretch_s[1] - stretch_s[0]:g} s" if stretch_s else "on all of the traffic"


def _told(one: Answer) -> str:
    return f"{described(one.point)}: " if one.point else ""


def _answer_tables(one: Answer) -> list[TextTable]:
    assert one.drawn is not None, "who wants a page has the answer drawn"
    title = f"{_told(one)}the answer {_where(one)}"
    around = surroundings_tables(one.around, _told(one)) if one.around else []
    return [summary_table(title, one.drawn.metrics), *around]


def _sections(one: Answer, slo: Mapping[str, float]) -> list[ReportSection]:
    assert one.drawn is not None, "who wants a page has the answer drawn"
    assert one.drawn.picture is not None, "it was asked for"
    told, drawn = _told(one), DrawnRun("", one.drawn.metrics, one.drawn.picture)
    fleets = [_drawn(trial, one.plan, slo) for trial in one.plan.trials]
    around = drawn_curves(one.around.curves) if one.around else []
    pools = " + ".join(map(short_name, one.plan.pools))
    loads = [("", figures.goodput_curves(around)), (_PARETO, figures.pareto(around))] if around else []
    return [
        *([ReportSection(f"{told}under more and less load, {_where(one)}", loads)] if loads else []),
        ReportSection(f"{told}fleets that were tried", [(_FLEETS.format(pools=pools), figures.fleets(fleets))]),
        ReportSection(f"{told}latency of the answer {_where(one)}", [("", figures.latency_cdf([drawn]))]),
        ReportSection(f"{told}where its TTFT goes", [("", figures.ttft_stages([drawn]))]),
        ReportSection(f"{told}its load over time", [("", figures.loads(drawn))]),
    ]


def _drawn(trial: Trial, plan: Plan, slo: Mapping[str, float]) -> DrawnFleet:
    metrics, ratio = trial.result.metrics, None
    if metrics is not None:
        with suppress(InputError):  # a stretch in which nothing completed has no such figure
            ratio = max(metric(metrics, name) / bound for name, bound in slo.items())
    kind = "answer" if trial is plan.answer else "all" if trial.is_whole else "stretch"
    return DrawnFleet(sizes(trial), trial.cost, ratio, kind)
