"""The clock of a fleet: SimPy's, quicker where a run spends its time.

Most of what a fleet waits for is a moment, and nearly every process is a request that nobody waits for. SimPy takes a call for each
event that happens, and two events more for the beginning and the end of a process. What happens, and in which order, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any, Final

import simpy

Callback = Callable[[simpy.Event], Any]
Steps = Generator[simpy.Event, Any, None]
"""A process: it yields what it waits for."""

_URGENT: Final = 0
NORMAL: Final = 1
"""SimPy has these two priorities; a larger number comes later within an instant."""


class Alarm(simpy.Event):
    """A moment that will come.

    Args:
        env: Its clock.
        callbacks: Called then; `callbacks.clear()` calls it off.
    """

    _ok = True
    _value = None

    def __init__(self, env: simpy.Environment, callbacks: list[Callback]) -> None:  # what `Event` does, and no more
        self.env = env
        self.callbacks = callbacks


class _Walk:
    """A generator on its way from event to event."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def go_on(self, event: simpy.Event) -> None:
        """Go on with what an event brings, as a SimPy process does."""
        steps = self._steps
        try:
            while event.callbacks is None:
                if event._ok:  # noqa: SLF001 - SimPy's processes do the same
                    event = steps.send(event._value)  # noqa: SLF001
                else:
                    event.defused = True
                    lost = event.value
                    error = type(lost)(*lost.args)  # one of its own, since raising it changes it
                    error.__cause__ = lost
                    event = steps.throw(error)
        except StopIteration:
            return
        event.callbacks.append(self.go_on)


class Clock(simpy.Environment):
    """SimPy's environment; times are milliseconds."""

    _queue: list[Any]

    def alarm(self, delay_ms: float, callbacks: list[Callback], priority: int = NORMAL) -> Alarm:
        """Call back after a time.

        Args:
            delay_ms: From now, 0 or more.
            callbacks: Take the alarm.
            priority: Within the instant; after it, who was scheduled first.
        """
        alarm = Alarm(self, callbacks)
        heappush(self._queue, (self._now + delay_ms, priority, next(self._eid), alarm))
        return alarm

    def begin(self, steps: Steps) -> None:
        """Begin a process at this instant, ahead of what is due, that nobody waits for and nobody interrupts."""
        self.alarm(0.0, [_Walk(steps).go_on], _URGENT)

    def run(self, until: Any = None) -> Any:
        """Let happen what is scheduled, to its end or as SimPy's does."""
        if until is not None:
            return super().run(until)
        queue = self._queue
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not event.defused:  # noqa: SLF001 - SimPy's own loop does the same
                raise event._value  # noqa: SLF001
        return None
