"""What the monitors of the register say of simulated runs, for the terminal, the page and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epdsim.scenario.points import described
from epdsim.scenario.runner import RunResult

if TYPE_CHECKING:
    from epdsim.spec import Verdict

Judged = Mapping[str, "Verdict"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that some run broke, in a sentence; told beside claims that fail."""

    sentence: str
    holds: bool = False


def violations(runs: Iterable[RunResult]) -> list[Violation]:
    """Every property that a run broke, with its first story."""
    return [
        Violation(f"{one.property_id}{_at(run)}: {one.first.told}{_more(one.num_broken)}")
        for run in runs
        for one in (run.judged or {}).values()
        if one.first is not None
    ]


def _at(run: RunResult) -> str:
    return f" at {described(run.point)}" if run.point else ""


def _more(num_broken: int) -> str:
    return f" (and {num_broken - 1:,} more)" if num_broken > 1 else ""


def summary(runs: Sequence[RunResult]) -> str:
    """How many properties held, in a sentence; empty when nothing was judged. One holds that some run tested and none broke."""
    if not any(run.judged for run in runs):
        return ""
    from epdsim.spec import Outcome, Verdict  # noqa: PLC0415 - loaded by whoever judged

    total: dict[str, Verdict] = {}
    for run in runs:
        for name, verdict in (run.judged or {}).items():
            total.setdefault(name, Verdict(name)).add(verdict)
    count = [one.outcome for one in total.values()].count
    told = f"{count(Outcome.HOLDS)} of {len(total)} properties held"
    if count(Outcome.VIOLATED):
        told += f", {count(Outcome.VIOLATED)} were violated"
    return f"{told}, {count(Outcome.INCONCLUSIVE)} were not put to the test by what these runs did"


def as_plain(judged: Judged | None) -> dict[str, object] | None:
    """For JSON: by outcome the ids, and of each violation how often and the first; None when nothing was judged."""
    if judged is None:
        return None
    from epdsim.spec import REGISTER, Outcome  # noqa: PLC0415 - as above

    by_outcome = {
        str(outcome): [name for name, one in judged.items() if one.outcome is outcome]
        for outcome in (Outcome.HOLDS, Outcome.INCONCLUSIVE)
    }
    broken = [
        {"property": name, "sentence": REGISTER[name].sentence, "times": one.num_broken, "first": one.first.told}
        for name, one in judged.items()
        if one.first is not None
    ]
    return {**by_outcome, str(Outcome.VIOLATED): broken}
