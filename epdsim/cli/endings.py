"""Signals that ask the program to end: what is half done is taken back on the way out."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Ended(BaseException):
    """A signal came that asks the program to end.

    An interrupt is one of them: a KeyboardInterrupt would end in typer, which says nothing.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        """The sentence."""
        told = "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"
        return f"{told}; nothing half-written is left"


_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_came: list[int] = []


@contextmanager
def signals_end_it() -> Generator[None, None, None]:
    """Raise `Ended` where the program is when a signal comes, unless whoever started it has another use for the signal."""
    _came.clear()
    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: signal.signal(number, _end) for number in _ENDING if signal.getsignal(number) in usual}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_asked_to_end() -> bool:
    """Whether a signal came, for those who call what catches every exception, as pytest and Hypothesis do."""
    return bool(_came)


def end_if_asked() -> None:
    """Go on with the end that somebody caught.

    Raises:
        Ended: A signal came.
    """
    if _came:
        raise Ended(_came[0])


def _end(number: int, _frame: FrameType | None) -> None:
    _came.append(number)
    raise Ended(number)
