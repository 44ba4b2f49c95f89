"""One line on stderr while runs go on; silent where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from epdsim.events import Event, RequestFailed, RequestFinished
from epdsim.report.table import millis

if TYPE_CHECKING:
    from rich.status import Status

_SHOW_EVERY = 500


class SweepProgress:
    """How many runs have ended, how many of them were in the store, at which rate, and how long the rest will take.

    It also takes events of a run in this process, and shows how far that is.

    Args:
        told: Put in front of the line.
    """

    def __init__(self, told: str = "") -> None:
        self._status = _status() if sys.stderr.isatty() else None
        self._told = f"{told}: " if told else ""
        self._total = self._ended = self._stored = self._requests = 0
        self._began_s = time.monotonic()

    @property
    def is_shown(self) -> bool:
        """Whether anybody sees it."""
        return self._status is not None

    def expect(self, num_runs: int) -> None:
        """So many more are to come."""
        self._total += num_runs
        self._show()

    def ended(self, *, is_stored: bool = False) -> None:
        """One has ended, or was in the store."""
        self._ended += 1
        self._stored += is_stored
        self._requests = 0
        self._show()

    def __call__(self, event: Event) -> None:
        """Count what ends in a run."""
        if isinstance(event, (RequestFinished, RequestFailed)):
            self._requests += 1
            if self._requests % _SHOW_EVERY == 0:
                self._show(f"; of the next one {self._requests:,} requests, simulated {millis(event.time_ms)}")

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

    def _show(self, more: str = "") -> None:
        if self._status is not None:
            from rich.text import Text  # noqa: PLC0415 - as in _status

            self._status.update(Text(self.line(time.monotonic() - self._began_s) + more))

    def __enter__(self) -> SweepProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _status() -> Status:
    from rich.console import Console  # noqa: PLC0415 - where nobody looks on, nothing is drawn

    return Console(stderr=True).status("")
