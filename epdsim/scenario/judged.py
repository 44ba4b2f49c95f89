"""What the monitors of the register say of simulated runs, for the terminal, the page and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from epdsim.core.records import record
from epdsim.scenario.points import described
from epdsim.scenario.runner import Judged, RunResult


@record
class Violation:
    """A property that some run broke, in a sentence; told beside claims that fail."""

    sentence: str
    holds: bool = False


def violations(runs: Iterable[RunResult], told: str = "") -> list[Violation]:
    """Every property that a run broke, with its first story.

    Args:
        runs: Judged or not.
        told: Whose runs they are, where that is to be said.
    """
    return [
        Violation(f"{name}{_at(run, told)}: {one.first}{_more(one.num_broken)}")
        for run in runs
        for name, one in (run.judged or {}).items()
        if one.num_broken
    ]


def _at(run: RunResult, told: str) -> str:
    place = ", ".join(filter(None, (told, described(run.point))))
    return f" at {place}" if place else ""


def _more(num_broken: int) -> str:
    return f" (and {num_broken - 1:,} more)" if num_broken > 1 else ""


def summary(runs: Sequence[RunResult]) -> str:
    """How many properties held, in a sentence; empty when nothing was judged. One holds that some run tested and none broke."""
    judged = [run.judged for run in runs if run.judged]
    if not judged:
        return ""
    names = dict.fromkeys(name for one in judged for name in one)
    total = {name: [one[name] for one in judged if name in one] for name in names}
    broken = sum(any(one.num_broken for one in told) for told in total.values())
    held = sum(_holds(told) for told in total.values())
    sentence = f"{held} of {len(total)} properties held"
    if broken:
        sentence += f", {broken} were violated"
    return f"{sentence}, {len(total) - held - broken} were not put to the test by what these runs did"


def _holds(told: Iterable[Judged]) -> bool:
    return any(one.num_reached for one in told) and not any(one.num_broken for one in told)


def as_plain(judged: Mapping[str, Judged] | None) -> dict[str, object] | None:
    """For JSON: by outcome the ids, and of each violation how often and the first; None when nothing was judged."""
    if judged is None:
        return None
    from epdsim.spec import REGISTER, Outcome  # noqa: PLC0415 - loaded by whoever judged

    broken = [
        {"property": name, "sentence": REGISTER[name].sentence, "times": one.num_broken, "first": one.first}
        for name, one in judged.items()
        if one.num_broken
    ]
    return {
        str(Outcome.HOLDS): [name for name, one in judged.items() if _holds([one])],
        str(Outcome.INCONCLUSIVE): [name for name, one in judged.items() if not (one.num_reached or one.num_broken)],
        str(Outcome.VIOLATED): broken,
    }
