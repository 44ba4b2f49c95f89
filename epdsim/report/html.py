"""One self-contained HTML file: tables and figures, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Protocol

from epdsim import __version__
from epdsim.core.files import whole_file
from epdsim.core.records import record
from epdsim.report.table import TextTable


@record
class ReportSection:
    """Figures under one heading: caption and SVG of each."""

    title: str
    figures: Sequence[tuple[str, str]]


class ReportClaim(Protocol):
    """A claim and whether it holds."""

    @property
    def holds(self) -> bool:
        """Whether it does."""
        ...

    @property
    def sentence(self) -> str:
        """The claim in words."""
        ...


@record
class Report:
    """All that a report shows.

    Attributes:
        name: Of the scenario.
        title: What it asks.
        source: Where its figures come from.
        seed: Of the runs.
        assumptions: Sentences.
        verdicts: Claims, judged.
        judged: What the monitors say of the runs, in a sentence; empty when nobody asked.
        violations: Properties that a run broke.
        tables: Before the figures.
        sections: Figures.
    """

    name: str
    title: str
    source: str
    seed: int
    assumptions: Sequence[str]
    verdicts: Sequence[ReportClaim]
    judged: str
    violations: Sequence[ReportClaim]
    tables: Sequence[TextTable]
    sections: Sequence[ReportSection]


def write_html(path: Path, report: Report) -> None:
    """Write a report; the file is there only when it is whole.

    Raises:
        InputError: It cannot be written.
    """
    import jinja2  # noqa: PLC0415 - a run without a page needs no templates

    loader = jinja2.PackageLoader("epdsim.report")
    page = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "report.html.j2"
    )
    shown = {one.name: getattr(report, one.name) for one in fields(report)}
    with whole_file(path, f"report {str(path)!r}") as file:
        file.write(page.render(version=__version__, **shown).encode())
