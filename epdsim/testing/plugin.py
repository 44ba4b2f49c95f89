"""The pytest plugin: options, the fixture `epd`, and a table of verdicts with their stories at the end of the run.

It loads in every pytest run of the environment, so nothing heavy is imported before a property is tested.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epdsim.core.errors import EpdsimError
from epdsim.core.files import check_place, whole_file
from epdsim.testing.verdicts import FAILED, failed

if TYPE_CHECKING:
    from epdsim.testing.session import Session

RECORD = "epd"
"""Name under which a test's report carries its verdict."""
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
PROGRESS: pytest.StashKey[Callable[[str], None]] = pytest.StashKey()
"""Where a plugin of the run may say who is told what is being done."""


def _number(kind: Callable[[str], float], least: int) -> Callable[[str], float]:
    """Reads a finite number that is not smaller than the least."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind.__name__} of at least {least}")
        return value

    return read


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of property runs."""
    group = parser.getgroup("epdsim", "properties of epdsim")
    for name, kind, shown, told in (
        ("sut", str, "SYSTEM", "System under test: reference (default), vllm, or one that a package registers."),
        ("dialect", str, "NAME", "Dialect of the reference: ideal (default), or a release such as vllm-0.32."),
        ("seed", _number(int, 0), "N", "Seed of all explorations (default 0)."),
        ("budget", _number(int, 1), "N", "Cases of each exploration (default 150)."),
        ("seconds", _number(float, 0), "N", "Seconds for all explorations and stories together (default: no limit)."),
        ("report", str, "FILE", "Write the verdicts to FILE (JSON)."),
        ("failures", str, "DIR", "Where failures are kept (default .epdsim/failures)."),
    ):
        group.addoption(f"--epd-{name}", default=None, type=kind, metavar=shown, help=told)
    group.addoption("--epd-no-stories", action="store_true", help="Give verdicts alone, which is quicker.")
    parser.addini("epd_sut", "System under test.", default="reference")
    parser.addini("epd_budget", "Cases of each exploration.", default="150")


def pytest_configure(config: pytest.Config) -> None:
    """Markers of the property pack."""
    config.addinivalue_line("markers", "epd_property(id): the property that a test judges")
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): tests that share what they explored")

    _check_options(config)


def _check_options(config: pytest.Config) -> None:
    """Say what cannot be used before any test runs; an ordinary run of pytest pays nothing for it."""
    try:
        told = options(config)
        if report := config.getoption("--epd-report"):
            check_place(Path(report), f"--epd-report {report!r}")
        if config.getoption("--epd-sut") or told["dialect"]:
            from epdsim.sut.systems import find_system  # noqa: PLC0415 - heavy, and only here needed

            find_system(told["sut"], told["dialect"])
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"epd_budget: {error}") from error
    except EpdsimError as error:
        raise pytest.UsageError(str(error)) from error


def options(config: pytest.Config) -> dict[str, Any]:
    """System, dialect, seed, budget and folder in force."""
    return {
        "sut": config.getoption("--epd-sut") or str(config.getini("epd_sut")),
        "dialect": config.getoption("--epd-dialect"),
        "seed": config.getoption("--epd-seed") or 0,
        "budget": config.getoption("--epd-budget") or _number(int, 1)(str(config.getini("epd_budget"))),
        "seconds": config.getoption("--epd-seconds"),
        "failures": config.getoption("--epd-failures"),
    }


def pytest_report_header(config: pytest.Config) -> str | None:
    """What the properties run against, when somebody asked."""
    if config.getoption("--epd-sut") is None and config.getoption("--epd-dialect") is None:
        return None
    told = options(config)
    dialect = f" {told['dialect']}" if told["dialect"] else ""
    return f"epdsim: properties against {told['sut']}{dialect}, seed {told['seed']}, budget {told['budget']}"


@pytest.fixture(scope="session")
def epd_session(pytestconfig: pytest.Config) -> Session:
    """What is explored once and judged by many tests."""
    from epdsim.testing.session import Session  # noqa: PLC0415 - heavy, and only here needed

    told = options(pytestconfig)
    known = pytestconfig.stash.get(_SESSION, None)
    if known is None:
        folder = None if told["failures"] is None else Path(told["failures"])
        progress = pytestconfig.stash.get(PROGRESS, lambda _: None)
        known = Session(
            told["sut"],
            told["dialect"],
            told["seed"],
            told["budget"],
            folder,
            told["seconds"],
            progress,
            tells_stories=not pytestconfig.getoption("--epd-no-stories"),
        )
        pytestconfig.stash[_SESSION] = known
    return known


@pytest.fixture
def epd(epd_session: Session, record_property: Any) -> Any:
    """Judges a property over explorations: `epd(property_id, exploration, ...)`.

    It fails with the story when the property is violated, and also when its premise was never reached.
    """

    def check(property_id: str, *explorations: Any) -> None:
        reason = epd_session.reason_to_skip(property_id, explorations)
        if reason:
            record_property(RECORD, {"id": property_id, "outcome": "not run", "reason": reason})
            pytest.skip(reason)
        try:
            verdict = epd_session.check(property_id, explorations)
        except Exception as error:
            record_property(RECORD, failed(property_id, error))
            raise
        record_property(RECORD, verdict)
        if verdict["outcome"] == "violated":
            lines = [line for one in verdict["stories"] for line in (*one["lines"], "")]
            pytest.fail("\n".join(lines[:-1]) or f"violated; {verdict.get('reason', 'no stories')}", pytrace=False)
        if verdict["outcome"] == "inconclusive":
            pytest.fail(f"inconclusive: {verdict['reason']}", pytrace=False)

    return check


def _version(config: pytest.Config) -> str | None:
    """Dialect or release of the system; None when no property came to be tested."""
    session = config.stash.get(_SESSION, None)
    return None if session is None else session.system.version


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of verdicts."""
    verdicts = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") in ("call", "setup")
        for key, value in getattr(report, "user_properties", ())
        if key == RECORD
    ]
    if not verdicts:
        return
    verdicts.sort(key=lambda one: one["id"])
    report = config.getoption("--epd-report")
    if report:
        told = {**options(config), "version": _version(config), "verdicts": verdicts}
        with whole_file(Path(report), f"--epd-report {report!r}") as out:
            out.write(json.dumps(told, indent=1).encode() + b"\n")
    asked = config.getoption("--epd-sut") is not None or config.getoption("--epd-dialect") is not None
    bad = [one for one in verdicts if one["outcome"] in ("violated", "inconclusive", FAILED)]
    if not (asked or bad):
        return
    terminalreporter.section("properties")
    for one in verdicts:
        more = one.get("replay") or one.get("reason") or f"premise reached {one['num_reached']} times"
        terminalreporter.write_line(f"{one['id']:<14} {one['outcome']:<13} {more}")
