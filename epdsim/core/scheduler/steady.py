"""Many decode steps at once, with the result of taking them one by one (property FWD-EQ).

As long as every running request computes one token a step and nobody can join, leave or lose blocks, a step decides nothing: what
follows is a matter of counts. `steady_steps` says for how many steps that holds, `take_steps` takes them. The order in which
blocks are taken and become findable within those steps is kept, since later decisions depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.core.scheduler.engine import NEVER, EngineState, PauseState
from epdsim.core.scheduler.state import RequestState, Status
from epdsim.core.scheduler.update import StepOutcome, end_request


def steady_steps(engine: EngineState, most: int = NEVER) -> int:
    """Steps ahead that compute one token of each running request and nothing else; only the last one may finish requests.

    0 whenever the next step has to be planned, as always with a drafter, for what is accepted decides what comes next; `most` where
    there are more.
    """
    config, running, cache = engine.config, engine.running, engine.encoder_cache
    is_full = len(running) + engine.num_streaming >= config.max_num_seqs
    if not running or config.async_scheduling or engine.refused or engine.drafter.num_drafts:
        return 0
    if (
        len(running) > config.max_num_batched_tokens
        or (engine.ec is not None and engine.ec.is_busy)
        or config.mm_encoder_only
        or engine.pause_state is not PauseState.UNPAUSED
        or not (is_full or _nobody_can_join(engine))
    ):
        return 0
    if engine.transfers is not None and not engine.transfers.is_idle:
        return 0
    for state in running:
        num_computed, num_tokens = state.num_computed, state.num_tokens
        if num_computed != num_tokens - 1 or state.num_in_flight or num_computed < state.last_media_end:
            return 0
        if state.features and cache.held(state.request_id):
            return 0
        most = min(most, state.end_tokens - num_tokens)
    return _affordable(engine, most)


def _nobody_can_join(engine: EngineState) -> bool:
    if not engine.holding.members:
        return not engine.waiting.members
    is_idle = engine.config.policy == "fcfs" and all(state.status is Status.STREAMING for state in engine.holding)
    return is_idle and not engine.waiting.members


def _affordable(engine: EngineState, most: int) -> int:
    """The largest number of steps up to `most` for which the pool has the blocks, so that nobody is preempted."""
    running, free = engine.running, engine.pool.num_free
    if engine.blocks_for(most) * len(running) <= free:
        return most

    def blocks_after(steps: int) -> int:
        return sum(max(0, engine.blocks_for(state.num_computed + steps) - len(state.blocks)) for state in running)

    if blocks_after(most) <= free:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if blocks_after(middle) <= free else (low, middle)
    return low


def take_steps(engine: EngineState, count: int) -> StepOutcome:
    """Take `count` steps, which the caller has seen to be steady; each request samples one token a step."""
    running, size = list(engine.running), engine.config.block_size
    engine.encoder_cache.take_freed()
    engine.finished, engine.preempted = [], []
    if engine.transfers is not None:
        engine.transfers.planned([], {}, engine.requests)
    needs: list[tuple[int, int]] = []
    filled: list[RequestState] = []
    ended: list[RequestState] = []
    has_ids = False
    for index, state in enumerate(running):
        state.num_computed = num_computed = state.num_computed + count
        state.num_tokens = num_tokens = num_computed + 1  # all that are known but the last one are computed
        if num_computed > state.capacity:
            first = state.capacity - num_computed + count + 1
            needs += [(step, index) for step in range(first, count + 1, size)]
        if num_computed >= state.publish_at:
            filled.append(state)
        if num_tokens >= state.end_tokens:
            ended.append(state)
        if state.outputs is not None:
            has_ids = True
            state.outputs += [-1 - place for place in range(len(state.outputs), len(state.outputs) + count)]
    if needs:
        _take_blocks(engine, running, needs)
    if has_ids:
        _publish_in_order(engine, running, count)
    for state in filled:
        engine.publish(state, state.num_computed)
    engine.step += count
    finished: list[str] = []
    turned: list[str] = []
    for state in ended:
        (finished if end_request(engine, state) else turned).append(state.request_id)
    return StepOutcome(dict.fromkeys([state.request_id for state in running], count), finished, turned=turned)


def _take_blocks(engine: EngineState, running: list[RequestState], needs: list[tuple[int, int]]) -> None:
    """Take a block for each need: earlier steps first, within a step in scheduling order.

    Args:
        engine: Its pool gives the blocks.
        running: Requests in scheduling order.
        needs: The step in which a request needs a block, and the request's place.
    """
    size = engine.config.block_size
    needs.sort()
    blocks = engine.pool.take(len(needs))
    for (_, index), block in zip(needs, blocks):  # noqa: B905 - compiled, it is a loop without tuples
        state = running[index]
        state.blocks.append(block)
        state.capacity += size


def _publish_in_order(engine: EngineState, running: list[RequestState], count: int) -> None:
    """Publish blocks in the order in which they were filled, which decides between those of equal key.

    Only outputs that have ids can be equal: others are named after their requests.
    """
    for step, index in sorted(_fillings(running, count, engine.config.block_size)):
        state = running[index]
        engine.publish(state, state.num_computed - count + step)


def _fillings(running: list[RequestState], count: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Steps, counted from 1, in which a request filled a block, with its place in scheduling order."""
    for index, state in enumerate(running):
        first = block_size - (state.num_computed - count) % block_size
        for step in range(first, count + 1, block_size):
            yield step, index
