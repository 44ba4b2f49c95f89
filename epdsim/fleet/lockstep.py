"""Engines that step together: data-parallel ranks whose forward passes are aligned.

Every step is as long as the longest of them, and a request that reaches an idle rank waits for the step of the others to end. vLLM
aligned the ranks of dense models too, by an all-reduce a step, before PR 30739; those of MoE models because experts are shared.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

from epdsim.fleet.world import Callback, World


class Lockstep:
    """The common clock of some engines: round after round as long as one of them has something to compute.

    Args:
        world: Clock.
    """

    def __init__(self, world: World) -> None:
        self._world, self._place = world, world.next_place()
        self._steps: list[tuple[float, Callback]] = []
        self._woken: list[Callable[[], None]] = []
        self._is_turning = False

    def join(self, duration_ms: float, ends: Callback) -> None:
        """Take part in the round that begins now with a step of so many milliseconds; `ends` is called at the end of the round."""
        assert self._is_turning, "an engine plans when a round ends, or when it is woken"
        self._steps.append((duration_ms, ends))

    def wake(self, advance: Callable[[], None]) -> None:
        """An idle engine has something to do: it plans when the round under way ends, or at this instant when there is none."""
        self._woken.append(advance)
        if not self._is_turning:
            self._is_turning = True
            self._world.soon(self._turn)

    def _turn(self, event: simpy.Event) -> None:
        """One round ends and the next begins; what ends plans the next step."""
        ended, self._steps = self._steps, []
        for _, ends in ended:
            ends(event)
        woken, self._woken = self._woken, []
        for advance in woken:
            advance()
        if self._steps:
            self._world.at_step_end(max(duration_ms for duration_ms, _ in self._steps), self._turn, self._place)
        else:
            self._is_turning = False
