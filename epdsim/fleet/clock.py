"""What of SimPy a fleet asks most often, in fewer strokes: moments, processes that nobody waits for, and the loop.

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
_NEW: Final = simpy.Event.__new__


def alarm(env: Any, delay_ms: float, callbacks: list[Callback], priority: int = NORMAL) -> simpy.Event:
    """A moment that will come, as SimPy's `Timeout`.

    Args:
        env: SimPy's environment; its times are milliseconds.
        delay_ms: From now, 0 or more.
        callbacks: Called then; `callbacks.clear()` calls it off.
        priority: Within the instant; after it, who was scheduled first.
    """
    event: Any = _NEW(simpy.Event)  # as SimPy's `Timeout` does, which sets all of it too
    event.env, event.callbacks, event._ok, event._value = env, callbacks, True, None  # noqa: SLF001
    heappush(env._queue, (env._now + delay_ms, priority, next(env._eid), event))  # noqa: SLF001 - as its `schedule` does
    return event


def begin(env: simpy.Environment, steps: Steps) -> None:
    """Begin a process at this instant, ahead of what is due, that nobody waits for and nobody interrupts."""
    alarm(env, 0.0, [_Walk(steps).go_on], _URGENT)


def run(env: Any) -> None:
    """Let happen what is scheduled, and what comes of that, until nothing is left: SimPy's `run`."""
    queue = env._queue  # noqa: SLF001 - SimPy's own loop does the same
    while queue:
        env._now, _, _, event = heappop(queue)  # noqa: SLF001
        callbacks, event.callbacks = event.callbacks, None
        for callback in callbacks:
            callback(event)
        if not event._ok and not event.defused:  # noqa: SLF001
            raise event._value  # noqa: SLF001


class _Walk:
    """A generator on its way from event to event."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def go_on(self, event: Any) -> None:
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
