"""Verdicts of several runs side by side: properties by release, and where a release and the model of it differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.testing.verdicts import FAILED, ReportedOutcome


class ReportedVerdict(msgspec.Struct, frozen=True):
    """One property in a report of `epdsim check`."""

    id: str
    outcome: ReportedOutcome
    reason: str = ""
    is_cut: bool = False


class Report(msgspec.Struct, frozen=True):
    """What `epdsim check --report` wrote."""

    sut: str
    version: str
    seed: int
    budget: int
    verdicts: list[ReportedVerdict]
    modes: str = ""
    seeds: str = ""

    @property
    def minor(self) -> str:
        """The release in short, for example `"0.32"`; the dialect's name where that is no release."""
        return ".".join(self.version.removeprefix("vllm-").split(".")[:2])

    @property
    def outcomes(self) -> Mapping[str, str]:
        """Outcomes by property."""
        return {one.id: one.outcome for one in self.verdicts}


class Difference(NamedTuple):
    """A property on which a release and the model of it do not agree; `reason` says why the release's is not decided."""

    property_id: str
    release: str
    seen: str
    predicted: str
    reason: str

    @property
    def is_explained(self) -> bool:
        """Whether the release's verdict is not decided, for a reason that is no failure of its test or of the model's."""
        return self.seen in ("not run", "inconclusive") and bool(self.reason) and self.predicted != FAILED


@record
class VerdictTable:
    """Properties by run.

    Attributes:
        columns: Titles of the runs.
        rows: Property ids with their outcomes.
        differences: Between releases and their models.
        num_compared: Verdicts that a release and its model both have.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    differences: Sequence[Difference]
    num_compared: int

    @property
    def is_equal(self) -> bool:
        """Whether every difference is that the release's verdict is not decided: not run, or its premise not reached."""
        return all(one.is_explained for one in self.differences)

    def markdown(self) -> list[str]:
        """The table as lines of Markdown."""
        lines = [f"| property | {' | '.join(self.columns)} |", f"| --- {'| --- ' * len(self.columns)}|"]
        return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in self.rows)]


def read_report(path: Path) -> Report:
    """A report.

    Raises:
        InputError: There is none, the file is something else, or it has two verdicts on one property.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        rule = f"it is no report of epdsim check ({error})"
        raise InputError(f"file {str(path)!r}", rule, "write one with epdsim check --report FILE") from error
    names = [one.id for one in report.verdicts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"file {str(path)!r}", f"it has several verdicts on {', '.join(twice)}", "leave all but one out"
        )
    return report


def verdict_table(reports: Sequence[Report]) -> VerdictTable:
    """Put runs side by side, releases in order; a run of the model stands for the release that it is compared with.

    Raises:
        InputError: Runs of different seeds, budgets or modes, or two of one system.
    """
    settings = {(one.seed, one.budget, one.modes, one.seeds) for one in reports}
    if len(settings) > 1:
        raise InputError("the reports", "their seeds, budgets or modes differ", "run all with the same")
    releases = _by_minor([one for one in reports if one.sut != "reference"])
    models = _by_minor([one for one in reports if one.sut == "reference"])
    shown = releases or models
    names = sorted({name for one in shown.values() for name in one.outcomes})
    rows = [(name, [one.outcomes.get(name, "") for one in shown.values()]) for name in names]
    columns = [f"{one.sut} {one.version}" for one in shown.values()]
    differences: list[Difference] = []
    num_compared = 0
    for minor, release in releases.items():
        if minor in models:
            num_compared += len(release.outcomes.keys() & models[minor].outcomes.keys())
            differences += _differences(release, models[minor])
    return VerdictTable(columns, rows, differences, num_compared)


def _by_minor(reports: Sequence[Report]) -> dict[str, Report]:
    found: dict[str, Report] = {}
    for one in sorted(reports, key=lambda one: [int(part) if part.isdigit() else -1 for part in one.minor.split(".")]):
        if one.minor in found:
            raise InputError(f"two reports of {one.sut} {one.minor}", "one is enough", "leave one out")
        found[one.minor] = one
    return found


def _differences(release: Report, model: Report) -> list[Difference]:
    predicted = model.outcomes
    return [
        Difference(one.id, release.version, one.outcome, predicted[one.id], one.reason)
        for one in sorted(release.verdicts, key=lambda one: one.id)
        if one.id in predicted and (one.outcome != predicted[one.id] or one.outcome == FAILED)
    ]
