"""Many decode steps at once, with the result of taking them one by one (property FWD-EQ).

As long as every running request computes one token a step and nobody can join, leave or lose blocks, a step decides nothing: what
follows is a matter of counts. `steady_steps` says for how many steps that holds, `take_steps` takes them. The order in which
blocks are taken and become findable within those steps is kept, since later decisions depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.core.scheduler_engine import EngineState
from epdsim.core.scheduler_state import RequestState
from epdsim.core.scheduler_update import StepOutcome, finish


def steady_steps(engine: EngineState) -> int:
    """Steps ahead that compute one token of each running request and nothing else; only the last one may finish requests.

    0 whenever the next step has to be planned.
    """
    config, running = engine.config, engine.running
    is_full = len(running) >= config.max_num_seqs
    if not running or config.async_scheduling or engine.refused or len(running) > config.max_num_batched_tokens:
        return 0
    if len(engine.waiting) and not is_full:
        return 0
    if not all(_only_decodes(engine, state) for state in running):
        return 0
    most = min(state.end_tokens - state.num_tokens for state in running)
    return _affordable(engine, most)


def _only_decodes(engine: EngineState, state: RequestState) -> bool:
    return (
        state.num_computed == state.num_tokens - 1
        and not state.num_in_flight
        and state.num_computed >= state.last_media_end
        and not (state.features and engine.encoder_cache.held(state.request_id))
    )


def _affordable(engine: EngineState, most: int) -> int:
    """The largest number of steps up to `most` for which the pool has the blocks, so that nobody is preempted."""

    def blocks_after(steps: int) -> int:
        return sum(
            max(0, engine.blocks_for(state.num_computed + steps) - len(state.blocks)) for state in engine.running
        )

    free = engine.pool.num_free
    if blocks_after(most) <= free:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if blocks_after(middle) <= free else (low, middle)
    return low


def take_steps(engine: EngineState, count: int) -> StepOutcome:
    """Take `count` steps, which the caller has seen to be steady; each request samples one token a step."""
    size = engine.config.block_size
    running = list(engine.running)
    engine.encoder_cache.take_freed()
    engine.finished, engine.preempted, engine.ec_loads = [], [], {}
    for state in running:
        if state.outputs is not None:
            state.outputs += [-1 - index for index in range(len(state.outputs), len(state.outputs) + count)]
    for step, index in sorted(_boundaries(running, count, size)):
        state = running[index]
        end = state.num_computed + step
        if end > state.capacity:
            engine.extend(state, end)
        engine.publish(state, end)
    for state in running:
        state.num_computed += count
        state.num_tokens += count
    engine.step += count
    ended = [state for state in running if state.num_tokens >= state.end_tokens]
    for state in ended:
        finish(engine, state)
    return StepOutcome({state.request_id: count for state in running}, [state.request_id for state in ended])


def _boundaries(running: list[RequestState], count: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Steps, counted from 1, in which a request fills a block or needs a new one, with its place in scheduling order."""
    for index, state in enumerate(running):
        for filled in range(block_size - state.num_computed % block_size, count + 1, block_size):
            yield filled, index
        for needed in range(state.capacity - state.num_computed + 1, count + 1, block_size):
            yield needed, index
