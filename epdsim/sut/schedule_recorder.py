"""Recording: a random workload played to an engine, and what the engine decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from epdsim.sut.schedule_play import EngineDiedError, Play
from epdsim.sut.schedule_records import RecordedRequest, RecordedWorkload
from epdsim.sut.schedule_workloads import ScheduleScript

MOST_STEPS = 600
"""Steps after which a recording is cut: two requests of equal urgency may preempt each other for ever."""


def record_workload(
    script: ScheduleScript, make_play: Callable[[RecordedWorkload], Play[Any]], most_steps: int = MOST_STEPS
) -> RecordedWorkload:
    """Play a workload until everybody has been served.

    Args:
        script: The workload, and who answers.
        make_play: Which engine to play it to.
        most_steps: Where to stop at the latest.

    Returns:
        The workload with its steps, further turns, and the ids that were alive when it was cut or the engine died.
    """
    workload, worker, drafting = script
    play = make_play(workload)
    requests = {request.request_id: request for request in workload.requests}
    outputs: dict[str, list[int]] = {name: [] for name in requests}
    left = {name for _, name in (*workload.aborts, *workload.late_aborts)}
    steps: list[dict[str, Any]] = []
    alive: set[str] = set()
    has_died = False

    def sample(name: str, num_drafts: int) -> list[int]:
        tokens = [worker.sample() for _ in range(1 + drafting.accepted(num_drafts))]
        outputs[name] += tokens
        return tokens

    while len(steps) < most_steps:
        try:
            step = play.step(len(steps), sample, lambda _: drafting.proposed())
        except EngineDiedError:
            has_died = True
            break
        steps.append(step)
        before, alive = alive, {*step["running"], *step["waiting"]}
        for name in sorted(before - alive - left):
            ended = requests[name]
            turn = worker.next_turn(ended, outputs[name][: ended.max_tokens], len(steps) - 1)
            if turn is not None:
                requests[turn.request_id] = turn
                outputs[turn.request_id] = []
                play.arrives_later(turn)
        if not alive and play.is_idle:
            break
    return msgspec.structs.replace(
        workload, requests=_in_order(requests), steps=steps, unfinished=sorted(alive), died=has_died
    )


def _in_order(requests: dict[str, RecordedRequest]) -> list[RecordedRequest]:
    """First those of the workload, then further turns as they came."""
    return list(requests.values())
