"""One line on stderr while a sweep runs; silent where stderr is no terminal."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text


class SweepProgress:
    """How many runs have ended, how many of them were in the store, at which rate, and how long the rest will take.

    Args:
        told: Put in front of the line.
    """

    def __init__(self, told: str = "") -> None:
        self._status = Console(stderr=True).status("")
        self._told = f"{told}: " if told else ""
        self._total = self._ended = self._stored = 0
        self._began_s = time.monotonic()

    def expect(self, num_runs: int) -> None:
        """So many more are to come."""
        self._total += num_runs
        self._show()

    def ended(self, *, is_stored: bool) -> None:
        """One has ended, or was in the store."""
        self._ended += 1
        self._stored += is_stored
        self._show()

    def line(self, elapsed_s: float) -> str:
        """What is shown after some seconds."""
        line = f"{self._told}{self._ended} of {self._total} runs"
        if self._stored:
            line += f", {self._stored} of them from the store"
        ran = self._ended - self._stored
        if ran and elapsed_s > 0:
            left_s = (self._total - self._ended) * elapsed_s / ran
            line += f"; {ran / elapsed_s:.2g} a second, {left_s:,.0f} s left"
        return line

    def _show(self) -> None:
        self._status.update(Text(self.line(time.monotonic() - self._began_s)))

    def __enter__(self) -> SweepProgress:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
