"""Failures kept as stories: a folder each, with the case, its events and what was violated, to be told and played again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file
from epdsim.core.records import record
from epdsim.events import Event, NdjsonWriter
from epdsim.spec import REGISTER, Outcome, Verdict, judge, tell_story, timeline
from epdsim.sut.cache_cases import MirrorCase, RingCase
from epdsim.sut.cases import Case, CheckCase, EngineCase, read_case, write_case
from epdsim.sut.position_cases import PositionCase
from epdsim.sut.probe import events_of
from epdsim.sut.systems import find_system

FOLDER = Path(".epdsim/failures")
"""Where failures are kept, below the working directory."""


@record
class Found:
    """A violation and what led to it."""

    property_id: str
    case: Case
    events: Sequence[Event]
    verdict: Verdict


class Failure(msgspec.Struct, frozen=True):
    """What is kept beside the case.

    Attributes:
        property_id: The violated property.
        system: Name of the system.
        dialect: Of the reference; None for systems without.
        version: Release or dialect that it was found in.
        seed: Of the exploration.
        exploration: Its name.
        told: The violation in a sentence.
    """

    property_id: str
    system: str
    dialect: str | None
    version: str
    seed: int
    exploration: str
    told: str

    @property
    def found_in(self) -> str:
        """Name and version of the system."""
        return f"{self.system} {self.version}"


class Status(StrEnum):
    """What a replay says."""

    STILL_FAILS = "STILL FAILS"
    FIXED = "FIXED"
    CHANGED = "CHANGED"


class Replayed(NamedTuple):
    """A failure played again: what it was, on which system, what is the case, and the story as it is (or was, if it is fixed)."""

    failure: Failure
    played_on: str
    status: Status
    detail: str
    story: Sequence[str]


def keep(
    found: Found, *, system: str, dialect: str | None, version: str, seed: int, exploration: str, folder: Path = FOLDER
) -> str:
    """Keep a failure; its id, the same for the same case.

    Raises:
        InputError: It cannot be written.
    """
    case = write_case(found.case)
    identifier = f"{found.property_id.lower()}-{blake2b(case + version.encode(), digest_size=3).hexdigest()}"
    place = folder / identifier
    assert found.verdict.first is not None, "it is violated"
    failure = Failure(found.property_id, system, dialect, version, seed, exploration, found.verdict.first.told)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"it cannot be made ({error.strerror})"
        raise InputError(f"folder {str(place)!r}", rule, "work in a folder that can be written to") from error
    told = "\n".join(told_failure(found)) + "\n"
    texts = {"case.json": case, "failure.json": msgspec.json.encode(failure), "story.txt": told.encode()}
    for name, text in texts.items():
        with whole_file(place / name, str(place / name)) as out:
            out.write(text)
    with NdjsonWriter(place / "events.ndjson", {"property": found.property_id, "system": f"{system} {version}"}) as out:
        for event in found.events:
            out(event)
    return identifier


def told_failure(found: Found) -> list[str]:
    """Statement, reason, settings, story and timeline of a failure."""
    one = REGISTER.get(found.property_id)
    head = [found.property_id] if one is None else [f"{one.id}: {one.sentence}", f"Why it matters: {one.why}"]
    lines = [f"{number:3}. {line}" for number, line in enumerate(tell_story(found.events, found.verdict), 1)]
    drawing = timeline(found.events, found.verdict.at)
    return [*head, *_options(found.case), "", *lines, *(["", *drawing] if drawing else [])]


def _options(case: Case) -> list[str]:
    """The settings of a case in a line."""
    if isinstance(case, EngineCase):
        config = msgspec.to_builtins(case.workload.config)
        # What is off and what nobody comes near is of no interest.
        config = {
            key: value for key, value in config.items() if value not in (False, None, 0, "none") and key not in _SILENT
        }
        told = ", ".join(f"{key} {value}" if value is not True else key for key, value in config.items())
        return [f"Settings: {told}"]
    if isinstance(case, MirrorCase):
        return [f"A mirrored cache of {case.capacity_bytes} bytes a side"]
    if isinstance(case, PositionCase):
        return [f"A prompt of {case.num_prompt_tokens} tokens under {case.scheme}"]
    if isinstance(case, RingCase):
        told = f"{case.size_bytes} bytes, objects of up to {case.max_object_bytes}, {case.num_readers} readers"
        return [f"A ring of {told}"]
    return ["A request to the validator" if isinstance(case, CheckCase) else "A call of the protocol's functions"]


_SILENT = ("vllm", "mode", "seed", "max_model_len")
"""Settings that a story does not tell."""


def find_failure(identifier: str | Path, folder: Path = FOLDER) -> Path | None:
    """The folder of a failure by id or by path, or the scenario file that it was saved as; None when there is none."""
    if Path(identifier).suffix in _SUFFIXES and Path(identifier).is_file():
        return Path(identifier)
    for place in (Path(identifier), folder / identifier):
        if (place / "failure.json").is_file():
            return place
    return None


def read_failure(place: Path) -> tuple[Failure, Case]:
    """What was kept.

    Raises:
        InputError: It cannot be read.
    """
    if place.is_file():
        return _read_scenario(place)
    try:
        failure = msgspec.json.decode((place / "failure.json").read_bytes(), type=Failure)
        case = read_case((place / "case.json").read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"failure {str(place)!r}", f"it cannot be read ({error})", "let it fail again") from error
    return failure, case


class _Scenario(msgspec.Struct, forbid_unknown_fields=True):
    """A failure in one file."""

    failure: Failure
    case: Case


def save_scenario(place: Path, path: Path) -> None:
    """Save a failure as one scenario file, which can be read, changed, kept beside the code that it is about, and replayed.

    Args:
        place: The failure.
        path: The file; its name ends in `.yaml`.

    Raises:
        InputError: The failure cannot be read, or the file not be written.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"scenario file {str(path)!r}", "its name ends in .yaml", f"take {path.with_suffix('.yaml')}")
    failure, case = read_failure(place)
    lines = [f"# {line}" if line else "#" for line in _story_of(place)]
    text = yaml.safe_dump(msgspec.to_builtins(_Scenario(failure, case)), sort_keys=False, width=120)
    with whole_file(path, f"scenario file {str(path)!r}") as out:
        out.write(("\n".join([*lines, f"# again: epdsim replay {path.name}", "", text])).encode())


def _read_scenario(path: Path) -> tuple[Failure, Case]:
    try:
        scenario = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), type=_Scenario)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(
            f"scenario file {str(path)!r}",
            f"it is no saved failure ({error})",
            "save one with epdsim replay ID --save-scenario",
        ) from error
    return scenario.failure, scenario.case


def _story_of(place: Path) -> list[str]:
    """The story as it was told when it was found."""
    if place.is_dir():
        return (place / "story.txt").read_text(encoding="utf-8").splitlines()
    lines = place.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("#").removeprefix(" ") for line in lines if line.startswith("#")][:-1]


_SUFFIXES = (".yaml", ".yml")


def replay_failure(place: Path) -> Replayed:
    """Put the case to the same system again, as it is now.

    Raises:
        InputError: It cannot be read, or the system is not here.
    """
    failure, case = read_failure(place)
    system = find_system(failure.system, failure.dialect)
    properties = [one for one in REGISTER.values() if one.id == failure.property_id]
    events = events_of(case, system)
    verdict = judge(events, properties).get(failure.property_id)
    if verdict is None:
        rule = "the register has no such property that is judged"
        raise InputError(f"property {failure.property_id!r}", rule, "its plugin may be absent")
    status, detail = _status(failure, verdict)
    story = (
        told_failure(Found(failure.property_id, case, events, verdict))
        if verdict.first is not None
        else _story_of(place)
    )
    return Replayed(failure, system.title, status, detail, story)


def _status(failure: Failure, verdict: Verdict) -> tuple[Status, str]:
    if verdict.first is not None:
        is_same = verdict.first.told == failure.told
        return (Status.STILL_FAILS, "") if is_same else (Status.CHANGED, "it is violated in another way")
    if verdict.outcome is Outcome.HOLDS:
        return Status.FIXED, "the premise is reached, and the property holds"
    return Status.FIXED, "the premise is not reached any more"
