"""`epdsim check`: hunt for violations of the properties, in the model or in a real system."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epdsim.cli.endings import end_if_asked, is_asked_to_end
from epdsim.cli.live import mode_names, seed_range

if TYPE_CHECKING:
    from epdsim.testing.hunt import Exploration
    from epdsim.testing.session import Session


def check(
    sut: Annotated[
        str, typer.Option(help="System under test: reference, vllm, or one that a package registers.", metavar="SYSTEM")
    ] = "reference",
    dialect: Annotated[
        str | None,
        typer.Option(help="Dialect of the reference, e.g. vllm-0.32.  [default: ideal]", metavar="NAME"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", help="A property or a family, e.g. STRIP; repeatable.", metavar="ID"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all explorations.", metavar="N")] = 0,
    budget: Annotated[int, typer.Option(min=1, help="Cases of each exploration.", metavar="N")] = 150,
    max_time: Annotated[
        float, typer.Option(min=1, help="Seconds after which what is left to explore is left out.", metavar="SECONDS")
    ] = 300,
    modes: Annotated[
        str | None,
        typer.Option(
            "--modes",
            help="Play these set-ups of the scheduler alone, separated by commas, as epdsim replay --live does.",
            metavar="MODES",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds of --modes, A up to B - 1.  [default: 0:1]", metavar="A:B")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Also write the verdicts to FILE (JSON), for epdsim table.", metavar="FILE", dir_okay=False),
    ] = None,
    stories: Annotated[
        bool,
        typer.Option("--stories/--no-stories", help="Make violations small and tell them, or give verdicts alone."),
    ] = True,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Tell on stderr what is being done, and each verdict.  [default: on a terminal]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON in place of stories.")] = False,
    show_all: Annotated[bool, typer.Option("--list", help="List all properties and leave.")] = False,
) -> None:
    """Hunt for violations of the properties, told as stories.

    The exit code is 1 when a property is violated, 2 when the test of one failed, 3 when the premise of one was never reached or
    nothing was judged.
    """
    import json
    import sys

    from epdsim.core.errors import InputError
    from epdsim.core.files import check_place, whole_file
    from epdsim.spec import REGISTER, properties_of
    from epdsim.testing.explored import explored_properties

    if show_all:
        _list(properties_of(only) if only else REGISTER.values())
        raise typer.Exit
    names = [one.id for one in explored_properties(only or ())]
    if modes is None and seeds is not None:
        raise InputError(
            f"--seeds {seeds}", "they are those of --modes", "give --modes too, or --seed for the explorations"
        )
    if report is not None:
        check_place(report, str(report))
    shows = sys.stderr.isatty() if progress is None else progress
    if modes is None:
        told = _run(names, sut, dialect, seed, budget, max_time, shows=shows, stories=stories)
    else:
        told = _played(names, sut, dialect, modes, seeds or "0:1", max_time, stories=stories)
    outcomes = {one["outcome"] for one in told["verdicts"]}
    if report is not None:
        with whole_file(report, str(report)) as out:
            out.write(json.dumps(told, indent=1).encode() + b"\n")
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    else:
        _tell(f"{sut} {told['version'] or ''}".strip(), told["verdicts"])
    raise typer.Exit(exit_code(outcomes))


def exit_code(outcomes: Collection[str]) -> int:
    """What a hunt ends with: 1 violated, 2 a test failed, 3 inconclusive or nothing judged at all.

    Args:
        outcomes: Of the properties.
    """
    from epdsim.testing.verdicts import FAILED

    if "violated" in outcomes:
        return 1
    if FAILED in outcomes:
        return 2
    if "inconclusive" in outcomes:
        return 3
    if "holds" not in outcomes:
        typer.echo("epdsim: nothing was judged", err=True)
        return 3
    return 0


def _list(properties: Any) -> None:
    from epdsim.report.table import print_table

    rows = [(one.id, one.judged, one.sentence) for one in properties]
    print_table("properties", ["id", "judged", "statement"], rows)


def _run(
    names: list[str],
    sut: str,
    dialect: str | None,
    seed: int,
    budget: int,
    max_time: float,
    *,
    shows: bool,
    stories: bool,
) -> dict[str, Any]:
    """The report of the property pack, run by pytest in this process."""
    import contextlib
    import io
    import json
    import os
    import tempfile
    import time

    import pytest

    import properties
    from epdsim.core.errors import EpdsimError
    from epdsim.sut.systems import find_system

    pack = Path(properties.__file__).parent
    begun = time.monotonic()

    def tell(what: str) -> None:
        if shows:
            typer.echo(f"{time.monotonic() - begun:4.0f} s  {what}", err=True)

    tell(f"loading {sut}")
    find_system(sut, dialect)  # what is wrong with it is told here, not thirty times by pytest
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        told = io.StringIO()
        arguments = [
            str(pack),
            *("-c", os.devnull, "--rootdir", str(pack.parent), "-p", "epdsim.testing.plugin", "-p", "no:cacheprovider"),
            *("--import-mode=importlib", "-q", "-W", "ignore", "-k", " or ".join(names), "--epd-report", str(report)),
            *("--epd-sut", sut, "--epd-seed", str(seed), "--epd-budget", str(budget), "--epd-seconds", str(max_time)),
            *(("--epd-dialect", dialect) if dialect else ()),
            *(() if stories else ("--epd-no-stories",)),
        ]
        progress = _Progress(tell)
        with contextlib.redirect_stdout(told):
            pytest.main(arguments, plugins=[progress])
        end_if_asked()
        if not report.is_file():
            raise EpdsimError(f"the property pack could not be run:\n{told.getvalue()}")
        read = json.loads(report.read_text(encoding="utf-8"))
        read["verdicts"] += progress.failed(names)
        return read


def _played(
    names: list[str], sut: str, dialect: str | None, modes: str, seeds: str, max_time: float, *, stories: bool
) -> dict[str, Any]:
    """The report of the workloads of some modes and seeds."""
    from epdsim.core.errors import InputError
    from epdsim.spec import REGISTER
    from epdsim.testing.modes import named_modes
    from epdsim.testing.session import Session

    session = Session(sut, dialect, seconds=max_time, tells_stories=stories)
    exploration = named_modes(mode_names(modes) or (), seed_range(seeds))
    if not session.hunter.can(exploration):
        raise InputError(f"--modes of {sut}", "it has no engine to play workloads to", "leave --modes out")
    of_engines = [name for name in names if REGISTER[name].level == "engine" and sut not in REGISTER[name].exempt]
    verdicts = [_checked(session, name, exploration) for name in of_engines]
    played = {"modes": modes, "seeds": seeds, "seed": session.hunter.seed, "budget": session.hunter.budget}
    return {"sut": sut, "dialect": dialect, **played, "version": session.system.version, "verdicts": verdicts}


def _checked(session: Session, name: str, exploration: Exploration) -> dict[str, Any]:
    from epdsim.core.errors import EpdsimError
    from epdsim.testing.verdicts import failed

    try:
        return session.check(name, [exploration])
    except EpdsimError:
        raise  # the modes are not for this system
    except Exception as error:  # noqa: BLE001 - of the system, which is what is tested
        return failed(name, error)


class _Progress:
    """A plugin of the run that tells what is done, and each verdict as it comes."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._reasons: dict[str, str] = {}

    def failed(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Properties whose tests ended without a verdict."""
        from epdsim.testing.verdicts import failed_for

        return [
            failed_for(name, reason) for test, reason in self._reasons.items() for name in names if f"[{name}]" in test
        ]

    def pytest_configure(self, config: Any) -> None:
        from epdsim.testing.plugin import PROGRESS

        config.stash[PROGRESS] = self._tell

    def pytest_sessionstart(self, session: Any) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: Any) -> None:
        from epdsim.testing.plugin import RECORD

        if is_asked_to_end():
            self._session.shouldstop = "a signal came"
            return
        verdicts = [value for key, value in report.user_properties if key == RECORD]
        if report.failed and not verdicts:
            self._reasons[report.nodeid] = report.longreprtext.strip().rpartition("\n")[2]
        for verdict in verdicts if report.when == "call" else ():
            self._tell(f"{verdict['id']} {verdict['outcome']}")


def _tell(title: str, verdicts: list[dict[str, Any]]) -> None:
    from epdsim.report.table import print_table
    from epdsim.testing.verdicts import note_of

    rows: list[tuple[str, ...]] = []
    for one in verdicts:
        stories = one.get("stories", ())
        notes = [note_of(story) for story in stories] or [one.get("reason", _cut(one))]
        rows.append((one["id"], one["outcome"], f"{one.get('num_reached', 0):,}", notes[0]))
        rows += [("", "", "", note) for note in notes[1:]]
        for story in stories:
            for line in (*story["lines"], ""):
                typer.echo(line.rstrip())
    print_table(title, ["property", "verdict", "reached", ""], rows)


def _cut(verdict: dict[str, Any]) -> str:
    return "not all cases: the time was over" if verdict.get("is_cut") else ""
