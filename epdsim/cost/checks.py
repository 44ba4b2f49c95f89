"""Checks of numbers that users give."""

from __future__ import annotations

from math import isfinite

from epdsim.core.errors import InputError


def positive(name: str, value: float) -> float:
    """The value itself when it is finite and above zero.

    Raises:
        InputError: Otherwise.
    """
    if not (isfinite(value) and value > 0):
        raise InputError(f"{name} = {value}", "must be a finite number above 0")
    return value


def non_negative(name: str, value: float) -> float:
    """The value itself when it is finite and not below zero.

    Raises:
        InputError: Otherwise.
    """
    if not (isfinite(value) and value >= 0):
        raise InputError(f"{name} = {value}", "must be a finite number, 0 or more")
    return value
