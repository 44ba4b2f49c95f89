"""The file in which a host's broadcast profile is kept: JSON, written by `epdsim calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.files import read_whole, whole_file
from epdsim.core.records import record
from epdsim.cost.broadcast import BroadcastProfile

FORMAT = "epdsim-broadcast-profile"
VLLM_0_25_1 = BroadcastProfile()
"""The built-in profile: the host of vLLM PR 52041 as far as it is published; see `BroadcastProfile` for the assumptions."""


@record
class MeasuredCell:
    """What the fit saw of one load, and what the fitted profile says of it.

    Attributes:
        readers: Ranks.
        message_bytes: Length of the message.
        num_unique_tensors: Tensors in it.
        num_items: Placeholders.
        repeats: Broadcasts timed.
        min_ms: Shortest of them.
        median_ms: Their median.
        max_ms: Longest of them.
        predicted_ms: By the profile.
    """

    readers: int
    message_bytes: int
    num_unique_tensors: int
    num_items: int
    repeats: int
    min_ms: float
    median_ms: float
    max_ms: float
    predicted_ms: float

    @property
    def is_within_spread(self) -> bool:
        """Whether the prediction lies between the shortest and the longest repeat."""
        return self.min_ms <= self.predicted_ms <= self.max_ms


@record
class ProfileRecord:
    """All that a profile file holds.

    Attributes:
        profile: The fitted constants.
        digest_bytes_per_ms: How fast one rank hashes what it received; no part of a broadcast.
        host: Cores, system, versions; nothing that names the host.
        measured: The loads that the profile was fitted on.
    """

    profile: BroadcastProfile
    digest_bytes_per_ms: float
    host: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    measured: tuple[MeasuredCell, ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["epdsim-broadcast-profile"]
    version: Literal[1]
    profile: dict[str, Any]
    digest_bytes_per_ms: float
    host: dict[str, str | int]
    measured: list[MeasuredCell]


def save_profile(path: Path, record: ProfileRecord) -> None:
    """Write a profile file, whole or not at all: into a temporary file beside it that then takes its name.

    Raises:
        InputError: The place cannot be written.
    """
    content = _File(
        FORMAT, 1, asdict(record.profile), record.digest_bytes_per_ms, dict(record.host), list(record.measured)
    )
    text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    with whole_file(path, str(path)) as file:
        file.write(text)


def load_profile(path: Path) -> BroadcastProfile:
    """The constants of a profile file.

    Raises:
        InputError: The file is missing, no JSON, or does not hold a whole and sound profile.
    """
    return load_record(path).profile


def load_record(path: Path) -> ProfileRecord:
    """All of a profile file.

    Raises:
        InputError: As `load_profile`.
    """
    try:
        text = read_whole(path, _MAX_BYTES)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", _REMEDY) from error
    try:
        content = msgspec.json.decode(text, type=_File)
        profile = _profile(content.profile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is no broadcast profile ({error})", _REMEDY) from error
    except InputError as error:
        raise error.at(str(path)) from error
    return ProfileRecord(profile, content.digest_bytes_per_ms, content.host, tuple(content.measured))


_MAX_BYTES = 1 << 24
_REMEDY = "`epdsim calibrate -o FILE` writes one"


def _profile(constants: dict[str, Any]) -> BroadcastProfile:
    names = [one.name for one in fields(BroadcastProfile)]
    missing = [name for name in names if name not in constants]
    unknown = sorted(set(constants) - set(names))
    if missing or unknown:
        raise InputError("profile", f"lacks {missing} and has unknown keys {unknown}", f"its keys are {names}")
    return msgspec.convert(constants, BroadcastProfile)
