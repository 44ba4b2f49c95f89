"""Rooms whose public names are imported when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def names_in(
    package: str, modules: Collection[str], names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a room: who needs one module of it does not wait for all the others.

    Args:
        package: `__name__` of the room.
        modules: Where the names are, each behind those that it imports.
        names: `__all__` of the room.
    """

    def look_up(name: str) -> Any:
        if name in names:
            for module in (import_module(f"{package}.{one}") for one in modules):
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return look_up, lambda: sorted(names)
