"""Which properties a hunt can judge: those of single engines and of the protocol's functions that have a monitor."""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.spec import REGISTER, Property, properties_of

_LEVELS = ("protocol", "engine")


def explored_properties(names: Sequence[str] = ()) -> tuple[Property, ...]:
    """Those of the properties and families named that a hunt judges; of all when none is named.

    Raises:
        InputError: One is unknown, or something else than a hunt judges all that it names.
    """
    for name in names:
        named = properties_of([name])
        if not any(map(_is_explored, named)):
            raise _refused(name, named[0])
    return tuple(one for one in (properties_of(names) if names else REGISTER.values()) if _is_explored(one))


def _is_explored(one: Property) -> bool:
    return one.monitor is not None and one.level in _LEVELS


def _refused(name: str, one: Property) -> InputError:
    told = f"property {name!r}"
    if one.stands_as:
        return InputError(told, "tests judge it, not a hunt", f"run pytest {one.stands_as[0]}")
    if one.not_judged:
        return InputError(told, f"nothing judges it yet ({one.not_judged})")
    return InputError(
        told, "it is judged on runs of a fleet, not by a hunt", "use epdsim run FILE --check, or epdsim judge"
    )
