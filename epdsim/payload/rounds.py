"""Timed rounds of broadcasts, the same for calibrating and for comparing, so that what one measures holds for the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from epdsim.core.plan import StepPlan
from epdsim.payload.message import message_size
from epdsim.payload.tp_workers import BroadcastResult, TpGroup

_PAUSE_S = 0.003
"""Between two broadcasts, as a step's forward lies between them; without it a plan pays for what the one before it left behind."""


def timed_rounds(
    groups: Sequence[TpGroup],
    plans: Sequence[StepPlan],
    repeats: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[list[BroadcastResult]]]:
    """Send every plan to every group once per round, in an order drawn anew for each round.

    So a slow spell of a shared machine falls on all plans and groups alike, and no plan always follows the same other one. The
    largest plan goes first, untimed: staging memory grows once, to its final size.

    Args:
        groups: Alive.
        plans: With data behind their handles.
        repeats: Timed rounds.
        progress: Told after each round how many of how many are done.

    Returns:
        By group and plan the results of the rounds, not digested.
    """
    largest = max(plans, key=lambda plan: message_size(plan).total_bytes)
    for group in groups:
        for plan in (largest, *plans):
            group.broadcast(plan, digest=False)
    results: list[list[list[BroadcastResult]]] = [[[] for _ in plans] for _ in groups]
    order = list(range(len(plans)))
    shuffle = random.Random("rounds").shuffle  # noqa: S311 - an order, not a secret
    for done in range(repeats):
        for group, of_group in zip(groups, results, strict=True):
            shuffle(order)
            for index in order:
                time.sleep(_PAUSE_S)
                of_group[index].append(group.broadcast(plans[index], digest=False))
        if progress is not None:
            progress(done + 1, repeats)
    return results
