"""`epdsim soak`: hunt over many seeds, for hours and on many machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epdsim.cli.check import exit_code

if TYPE_CHECKING:
    from epdsim.testing.soak import SoakFile


def soak(
    file: Annotated[Path, typer.Argument(help="Results, a line per seed; an earlier soak goes on.", metavar="FILE")],
    max_time: Annotated[
        float | None, typer.Option(min=0, help="Seconds after which no seed is begun any more.", metavar="SECONDS")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as FIRST:STOP; FIRST: goes on for ever.", metavar="RANGE")] = "0:",
    sut: Annotated[str, typer.Option(help="System under test, as of check.", metavar="SYSTEM")] = "reference",
    dialect: Annotated[str | None, typer.Option(help="Dialect of the reference.", metavar="NAME")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", help="A property or a family; repeatable.", metavar="ID"),
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Cases of each exploration, per seed.", metavar="N")] = 150,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Seeds at a time.  [default: one per core]", metavar="N")
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(help="Take the seeds of FILE too, which another machine wrote; repeatable.", metavar="FILE"),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run the seeds on a Ray cluster (extra: distributed).")] = False,
) -> None:
    """Hunt over many seeds and keep the shortest stories.

    With --max-time 0 nothing is run: FILE is merged and told. The exit code is 1 when a property is violated, 2 when a seed
    could not be run or the test of a property failed, 3 when the premise of a property was never reached or nothing was judged.
    """
    import os

    from epdsim.core.errors import InputError
    from epdsim.sut.systems import find_system
    from epdsim.testing import soak as soaking
    from epdsim.testing.explored import explored_properties

    first, stop = _range(seeds)
    if stop is None and max_time is None:
        raise InputError(f"--seeds {seeds}", "this never ends", "give --max-time, or a last seed")
    explored_properties(only or ())
    wanted = soaking.Soak(sut, dialect, tuple(only or ()), budget, find_system(sut, dialect).version)
    results = soaking.SoakFile(file, wanted)
    try:
        for other in merge or []:
            typer.echo(f"{results.merge(other):,} seeds from {other}", err=True)
        due = soaking.due(first, stop, results.reports, max_time)
        workers = soaking.on_ray if ray else soaking.on_this_machine
        died = list(_run(results, workers(wanted, due, jobs or os.cpu_count() or 1)))
    finally:
        results.close()
    outcomes = _tell(results)
    code = exit_code(outcomes)
    raise typer.Exit(2 if died and code != 1 else code)


def _range(text: str) -> tuple[int, int | None]:
    import re

    from epdsim.core.errors import InputError

    found = re.fullmatch(r"(\d+):(\d*)", text)
    if found is None:
        raise InputError(f"--seeds {text!r}", "it must be FIRST:STOP or FIRST:", "write e.g. 0:100")
    first, stop = int(found[1]), int(found[2]) if found[2] else None
    if stop is not None and stop <= first:
        raise InputError(f"--seeds {text}", "no seed is in it", "let the second be the larger one, e.g. 0:100")
    return first, stop


def _run(results: SoakFile, reports: Iterator[object]) -> Iterator[int]:
    """Keep what comes; yields the seeds that died."""
    from collections.abc import Mapping
    from typing import Any, cast

    from rich.console import Console

    with Console(stderr=True).status("") as status:
        for one in reports:
            report = cast("Mapping[str, Any]", one)
            results.add(report)
            if "died" in report:
                typer.echo(f"seed {report['seed']} could not be run: {report['died']}", err=True)
                yield report["seed"]
            status.update(f"{len(results.reports):,} seeds, the last one {report['seed']}")


def _tell(results: SoakFile) -> set[str]:
    """Print stories and table; the outcomes."""
    from epdsim.report.table import print_table
    from epdsim.testing.soak import tallies
    from epdsim.testing.verdicts import note_of

    told = tallies(results.reports.values())
    for tally in told.values():
        for line in (*tally.smallest["lines"], "") if tally.smallest else ():
            typer.echo(line.rstrip())
    rows = [
        (
            name,
            tally.outcome,
            f"{tally.num_reached:,}",
            f"{len(tally.violated or tally.failed):,}" if tally.violated or tally.failed else "",
            note_of(tally.smallest) if tally.smallest else tally.reason,
        )
        for name, tally in told.items()
    ]
    title = f"{results.soak.sut} {results.soak.dialect or ''}".strip()
    print_table(f"{title}, {len(results.reports):,} seeds", ["property", "verdict", "reached", "seeds", ""], rows)
    return {tally.outcome for tally in told.values()}
