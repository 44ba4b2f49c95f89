"""`epdsim replay`: compare the model with what was recorded, or with a real system live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.live import LiveOption, ModesOption, SeedsOption, mode_names, seed_range


def replay(
    what: Annotated[
        Path | None,
        typer.Argument(
            help="A wire recording (folder), a schedule recording (JSON lines), the id of a failure in .epdsim/failures here, or a "
            "file it was saved as.",
            metavar="WHAT",
        ),
    ] = None,
    live: LiveOption = None,
    seeds: SeedsOption = "0:25",
    modes: ModesOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
    save_scenario: Annotated[
        Path | None,
        typer.Option(
            "--save-scenario",
            help="Save the failure as one file (.yaml), which epdsim replay takes in any folder (it is not for epdsim run).",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Compare with a recording or live, or try a kept failure again.

    The exit code is 1 when something differs, and the first difference is told; or when the failure is not FIXED.
    """
    from epdsim.core.errors import InputError
    from epdsim.testing.failures import FOLDER, find_failure

    if (what is None) == (live is None):
        given = "no recording and no live system" if what is None else f"{what} and --live {live}"
        raise InputError(given, "replay takes a recording or --live SYSTEM", "give one of the two")
    failure = None if what is None else find_failure(what)
    if what is not None and failure is None and not what.exists():
        rule = f"there is no such file, and no such failure in {FOLDER} here"
        remedy = "go to the folder that check ran in, or take a file of --save-scenario from there"
        raise InputError(f"{str(what)!r}", rule, remedy)
    if save_scenario is not None:
        if failure is None:
            raise InputError("--save-scenario", "only a failure is saved as a scenario", "name the id of one")
        _save_scenario(failure, save_scenario)
    if failure is not None:
        raise typer.Exit(0 if _replay_failure(failure, as_json=as_json) else 1)
    is_equal = (
        _replay_recording(what, as_json=as_json)
        if what is not None
        else _replay_live(live or "", seeds, modes, as_json)
    )
    raise typer.Exit(0 if is_equal else 1)


def _save_scenario(place: Path, path: Path) -> None:
    from epdsim.testing.failures import save_scenario

    save_scenario(place, path)
    typer.echo(f"{path} written; play it with epdsim replay {path}\n", err=True)


def _replay_failure(place: Path, *, as_json: bool) -> bool:
    import json

    from epdsim.testing.failures import Status, replay_failure

    replayed = replay_failure(place)
    failure = replayed.failure
    if as_json:
        shown = {
            "id": place.name,
            "property": failure.property_id,
            "status": replayed.status,
            "detail": replayed.detail,
            "played_on": replayed.played_on,
            "found_in": failure.found_in,
        }
        typer.echo(json.dumps(shown | {"story": list(replayed.story)}, indent=1))
    else:
        for line in replayed.story:
            typer.echo(line)
        elsewhere = "" if replayed.played_on == failure.found_in else f"it was found in {failure.found_in}"
        notes = "; ".join(one for one in (replayed.detail, elsewhere) if one)
        typer.echo(f"\n{place.name} in {replayed.played_on}: {replayed.status}" + (f" ({notes})" if notes else ""))
    return replayed.status is Status.FIXED


def _replay_recording(what: Path, *, as_json: bool) -> bool:
    import dataclasses
    import json

    from epdsim.report.table import print_table
    from epdsim.sut import replay_any

    report = replay_any(what)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        rows = [(row.what, f"{row.equal:,} of {row.total:,}") for row in report.counts]
        print_table(f"{report.recording}: {report.release}", ["compared", "equal"], rows)
        for line in (*report.notes, *report.first_difference):
            typer.echo(line)
    return report.is_equal


def _replay_live(live: str, seeds: str, modes: str | None, as_json: bool) -> bool:
    import dataclasses
    import json

    from rich.console import Console

    from epdsim.report.table import print_table
    from epdsim.sut.live import compare_live, live_system

    wanted, names = seed_range(seeds), mode_names(modes)
    with Console(stderr=True).status(f"importing {live}") as status:
        report = compare_live(
            live_system(live),
            names,
            wanted,
            progress=lambda done, total: status.update(f"workload {done + 1} of {total}"),
        )
    if as_json:
        shown = dataclasses.asdict(report) | {"seeds": [report.seeds.start, report.seeds.stop]}
        typer.echo(json.dumps(shown, indent=2))
        return report.is_equal
    columns = ("workloads", "steps", "preemptions", "explained", "differences")
    figures = [[getattr(row, column) for column in columns] for row in report.rows]
    rows = [[row.mode, *(f"{figure:,}" for figure in line)] for row, line in zip(report.rows, figures, strict=True)]
    rows.append(["all", *(f"{sum(column):,}" for column in zip(*figures, strict=True))])
    print_table(f"the model and {report.system}, seeds {seeds}", ["mode", *columns], rows)
    for name, count in report.explained.items():
        typer.echo(f"{name}: {count} workloads")
    for line in report.first_difference:
        typer.echo(line)
    return report.is_equal
