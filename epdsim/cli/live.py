"""Options that `epdsim replay` and `epdsim record` share for a live system."""

from __future__ import annotations

from typing import Annotated

import typer

LiveOption = Annotated[
    str | None,
    typer.Option("--live", help="A real system, installed in this environment; there is one: vllm.", metavar="SYSTEM"),
]
SeedsOption = Annotated[
    str, typer.Option("--seeds", help="Seeds of the random workloads, A up to B - 1.", metavar="A:B")
]
ModesOption = Annotated[
    str | None,
    typer.Option(
        "--modes",
        help="Set-ups of the scheduler, separated by commas, e.g. v1,v2-async-prio.  [default: all]",
        metavar="MODES",
    ),
]

_MOST_SEEDS = 100_000
_MOST_DIGITS = 18


def seed_range(text: str) -> range:
    """The seeds that `A:B` names.

    Raises:
        InputError: It is of another form, or names none.
    """
    from epdsim.core.errors import InputError

    first, _, last = text.partition(":")
    are_numbers = all(one.isascii() and one.isdecimal() and len(one) <= _MOST_DIGITS for one in (first, last))
    if not are_numbers or int(first) >= int(last):
        raise InputError(f"--seeds {text!r}", "it is A:B with 0 <= A < B", "give for example 0:25")
    if int(last) - int(first) > _MOST_SEEDS:
        raise InputError(f"--seeds {text!r}", f"it names more than {_MOST_SEEDS:,} seeds", "name fewer")
    return range(int(first), int(last))


def mode_names(text: str | None) -> tuple[str, ...] | None:
    """The modes that are named, None when none are.

    Raises:
        InputError: One is unknown.
    """
    from epdsim.sut.schedule_modes import parse_mode

    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        parse_mode(name)
    return names
