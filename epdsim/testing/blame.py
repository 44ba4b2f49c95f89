"""Which rules of a release a violation hangs on.

The model in the release's dialect is put to the same case, with one rule after the other put right as long as it is violated.
"""

from __future__ import annotations

from epdsim.core.errors import InputError
from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect
from epdsim.spec import Property
from epdsim.sut.cases import Case
from epdsim.sut.systems import SystemUnderTest, reference_of
from epdsim.testing.reduction import violation


def rules_behind(case: Case, one: Property, system: SystemUnderTest) -> tuple[str, ...] | None:
    """Rules of the release without which the model does not violate the property.

    Args:
        case: That violates it.
        one: The property.
        system: Where it does.

    Returns:
        Names of rules, in alphabetical order, such that the model with these alone violates it, and with no fewer does;
        None when it does not violate the property in the dialect of the release, so that the violation is new to it, or when it
        does not know the release.
    """
    dialect = _dialect_of(system)
    if dialect is None or violation(case, one, reference_of(dialect)) is None:
        return None
    for name in sorted(dialect.replacements):
        smaller = _without(dialect, name)
        if violation(case, one, reference_of(smaller)) is not None:
            dialect = smaller
    return tuple(sorted(dialect.replacements))


def _dialect_of(system: SystemUnderTest) -> Dialect | None:
    try:
        return named(system.version if system.name == "reference" else f"vllm-{system.release}")
    except InputError:
        return None


def _without(dialect: Dialect, name: str) -> Dialect:
    others = {key: value for key, value in dialect.replacements.items() if key != name}
    return Dialect(dialect.name, others)
