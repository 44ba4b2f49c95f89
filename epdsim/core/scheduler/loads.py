"""KV cache from outside: what is offered at a look-up, loads between steps, and blocks that stay held for a transfer."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from epdsim.core.plan import KvLoad, TransferReport
from epdsim.core.rules import Rule
from epdsim.core.scheduler.engine import EngineState, StepDraft
from epdsim.core.scheduler.state import RequestState, Status
from epdsim.core.scheduler.transfers import Transfers


def others_prefilling(transfers: Transfers, state: RequestState) -> Iterable[RequestState]:
    """The other requests whose prompt is under way and that hold blocks for it."""
    return [one for one in transfers.prefills.values() if one is not state and one.blocks]


def all_prefilling(transfers: Transfers, _state: RequestState) -> Iterable[RequestState]:
    """Also those that hold nothing after a load that failed, the request itself among them: vLLM 0.32."""
    return transfers.prefills.values()


def goes_back(state: RequestState) -> bool:
    """Whether a request must queue again with those that hold no blocks: when its load brought nothing."""
    return not state.num_computed


def keeps_place(_state: RequestState) -> bool:
    """It is tried where it stands, and when it does not fit it keeps those out that hold blocks: vLLM 0.32."""
    return False


RESERVED = Rule(
    "scheduler.reserved",
    "An asynchronous load leaves free the blocks that other requests need to finish their prompts.",
    source="LIVE-PROG on vLLM 0.32.0, which counts a request against itself when its load failed and can be tried again",
    ideal=others_prefilling,
)
EMPTY_HANDED = Rule(
    "scheduler.empty_handed",
    "A request whose load brought nothing never stands before one that holds blocks.",
    source="LIVE-PROG on random workloads with a KV connector; no public report known",
    ideal=goes_back,
)


def remote_tokens(state: RequestState, num_local: int) -> tuple[int, bool] | None:
    """What the connector offers beyond the tokens found here: how many, and whether between steps; None for "not yet"."""
    if state.num_unready:
        state.num_unready -= 1
        return None
    request = state.request
    if not state.num_loads or not request.num_remote_tokens:
        return 0, False
    is_async = request.kv_transfer.loads_async
    # A load within the step leaves a token to compute in that step.
    most = state.num_tokens if is_async else state.num_tokens - 1
    num_tokens = max(0, min(request.num_remote_tokens, most) - num_local)
    return num_tokens, is_async and num_tokens > 0


def load_behind(engine: EngineState, state: RequestState, hit: list[int], end: int, *, is_async: bool) -> KvLoad:
    """The load of a request's blocks from behind the prefix hit up to token `end`."""
    blocks, start = state.blocks[len(hit) : engine.blocks_for(end)], len(hit) * engine.config.block_size
    return KvLoad(state.request_id, blocks, start, end, is_async)


def begin_load(engine: EngineState, draft: StepDraft, state: RequestState, hit: list[int], end: int) -> bool:
    """Give a waiting request the blocks for its first `end` tokens, which are loaded while it waits; False if they do not fit."""
    transfers = engine.transfers
    assert transfers is not None, "checked when the request was added"
    num_slots = engine.drafter.num_step_slots
    reserved = engine.blocks_for(num_slots) + sum(
        max(0, engine.blocks_for(one.num_tokens + num_slots) - len(one.blocks))
        for one in engine.dialect[RESERVED](transfers, state)
    )
    if not engine.fits(state, hit, end, reserved):
        return False
    engine.adopt(state, hit)
    engine.extend(state, end)
    state.num_cached, state.num_computed = len(hit) * engine.config.block_size, end
    state.num_loads -= 1
    state.status = Status.LOADING
    state.hit, state.hit_epoch = [], -1
    transfers.prefills[state.request_id] = state
    transfers.num_loading += 1
    draft.kv_loads.append(load_behind(engine, state, hit, end, is_async=True))
    return True


def has_arrived(engine: EngineState, state: RequestState) -> bool:
    """Whether a request's load is over and it can be admitted with what came; what came can be found from now on."""
    transfers = engine.transfers
    assert transfers is not None, "only a connector loads"
    if state.request_id not in transfers.received:
        return False
    del transfers.received[state.request_id]
    transfers.num_loading -= 1
    has_failed = state.request_id in transfers.failed
    if has_failed:
        del transfers.failed[state.request_id]
    if state.num_computed:
        engine.publish(state, state.num_computed)
    elif has_failed:
        engine.release_blocks(state)
    must_queue = has_failed and engine.dialect[EMPTY_HANDED](state)
    if state.num_computed == state.num_tokens:
        state.num_computed -= 1
    state.status = Status.PREEMPTED if state.was_preempted else Status.WAITING
    return not must_queue


def take_completed(engine: EngineState, transfers: Transfers, report: TransferReport) -> None:
    """Take note of transfers that are over; blocks of requests that ended meanwhile are given up."""
    for request_id in report.received:
        if request_id in engine.requests:
            transfers.received[request_id] = None
        else:
            engine.free_blocks(transfers.withheld.pop(request_id))
    for request_id in report.sent:
        engine.free_blocks(transfers.withheld.pop(request_id))


def withholds(transfers: Transfers, state: RequestState, *, has_ended: bool) -> bool:
    """Whether the blocks of a request that ends are still needed by a transfer; takes it out of the books.

    Args:
        transfers: Its books.
        state: The request.
        has_ended: Whether it has all its tokens, so that there is something to send.
    """
    request_id = state.request_id
    transfers.prefills.pop(request_id, None)
    transfers.rewound.pop(request_id, None)
    transfers.num_loading -= state.status is Status.LOADING
    is_loading = state.status is Status.LOADING and request_id not in transfers.received
    transfers.received.pop(request_id, None)
    transfers.failed.pop(request_id, None)
    is_sent = has_ended and state.request.kv_transfer.sends
    if is_sent:
        transfers.sends.append(request_id)
    if is_loading or is_sent:
        transfers.withheld[request_id] = state
        return True
    return False


def loading(engine: EngineState) -> Collection[RequestState]:
    """Requests whose load is under way or has just come."""
    return [state for state in engine.holding if state.status is Status.LOADING]
