"""`epdsim judge`: hold the properties against a file of events or of recorded schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def judge(
    what: Annotated[
        Path,
        typer.Argument(
            help="Events (NDJSON) or a schedule recording (JSON lines): a file, no pipe.", metavar="EVENTS.ndjson"
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", help="A property or a family, e.g. STRIP; repeatable.", metavar="ID"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Judge events of whatever source by the properties.

    The exit code is 1 when a property is violated.
    """
    import dataclasses
    import json

    from epdsim.report.table import print_table
    from epdsim.spec import JUDGED, Outcome, properties_of
    from epdsim.sut.judge_file import judge_file

    judged = judge_file(what, properties_of(only) if only else JUDGED)
    verdicts = sorted(judged.verdicts.values(), key=lambda one: one.property_id)
    if as_json:
        shown = {one.property_id: {"outcome": one.outcome, **dataclasses.asdict(one)} for one in verdicts}
        typer.echo(json.dumps(dataclasses.asdict(judged) | {"verdicts": shown}, indent=1))
    else:
        told = [one for one in verdicts if only or one.outcome is not Outcome.INCONCLUSIVE]
        rows = [(one.property_id, str(one.outcome), f"{one.num_reached:,}", f"{one.num_broken:,}") for one in told]
        print_table(what.name, ["property", "verdict", "reached", "violated"], rows)
        silent = len(verdicts) - len(told)
        typer.echo(f"{silent} further properties were never put to the test by these events" if silent else "")
        unknown = sum(judged.unknown.values())
        typer.echo(
            f"{judged.num_runs:,} runs, {judged.num_events:,} events judged, "
            f"{unknown:,} of unknown kind{_kinds(judged.unknown)}, {judged.num_out_of_order:,} out of order"
        )
        for name, story in judged.stories.items():
            num_broken = judged.verdicts[name].num_broken
            typer.echo(f"\n{name}{f', the first of {num_broken:,}' if num_broken > 1 else ''}")
            for line in story:
                typer.echo(f"  {line}".rstrip())
    raise typer.Exit(1 if judged.stories else 0)


def _kinds(unknown: dict[str, int]) -> str:
    return f" ({', '.join(sorted(unknown))})" if unknown else ""
