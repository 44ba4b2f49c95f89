"""What an engine knows of a request beyond its scheduler, and of steps that it takes at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import simpy

from epdsim.core.records import record
from epdsim.fleet.grid import TICKS_PER_MS
from epdsim.fleet.render import RenderedRequest
from epdsim.fleet.step_cost import StepBroadcast

NEVER_MS: Final = -1.0


@record
class Setback:
    """What was lost of a request before it came here.

    Attributes:
        lost_ms: When, the last time.
        delivered_tokens: Output tokens that the client has; the last ones of the prompt here.
    """

    lost_ms: float
    delivered_tokens: int


class Job:
    """A request in an engine: its rendering, the client's view of it, who waits for it, and what it has been through.

    Args:
        request_id: Of the request.
        rendered: As the client sent it.
        is_visible: Whether its tokens go to the client.
        done: Fires when it has all its tokens, and fails with `RequestLostError` when it ends without.
        setback: What was lost of it before.

    Attributes:
        allocated: Fires when it has blocks for a KV cache that is still to come; None when none is.
        output_tokens: So far.
        began_ms: When it was admitted; negative when it never was, or was preempted since.
        is_left: Whether its client has left, so that who waits for it is told when it is taken out.
    """

    __slots__ = (
        "allocated",
        "began_ms",
        "done",
        "is_left",
        "is_visible",
        "output_tokens",
        "rendered",
        "request_id",
        "setback",
    )

    def __init__(
        self, request_id: str, rendered: RenderedRequest, is_visible: bool, done: simpy.Event, setback: Setback | None
    ) -> None:
        self.request_id, self.rendered, self.is_visible = request_id, rendered, is_visible
        self.done, self.setback = done, setback
        self.allocated: simpy.Event | None = None
        self.output_tokens, self.began_ms, self.is_left = 0, NEVER_MS, False


class Stride:
    """Steps under way that decide nothing.

    Args:
        started_ms: When the first one began.
        ends: When each ends, in ticks of the grid since then.
        broadcast: Of each.

    Attributes:
        num_steps: How many of them are taken.
        timer: Fires when the last one that is taken ends.
    """

    __slots__ = ("_ends", "broadcast", "num_steps", "started_ms", "timer")

    timer: simpy.Event

    def __init__(self, started_ms: float, ends: Sequence[float], broadcast: StepBroadcast) -> None:
        self.started_ms, self._ends, self.broadcast = started_ms, ends, broadcast
        self.num_steps = len(ends)

    def cut(self, now_ms: float) -> float | None:
        """End with the step that is under way: how long that still takes; None when it is the last one anyway."""
        elapsed_ms = now_ms - self.started_ms
        num_steps = bisect_left(self._ends, elapsed_ms * TICKS_PER_MS) + 1
        if num_steps >= self.num_steps:
            return None
        self.num_steps = num_steps
        self.timer.callbacks.clear()
        return self._ends[num_steps - 1] / TICKS_PER_MS - elapsed_ms
