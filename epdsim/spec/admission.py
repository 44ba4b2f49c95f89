"""LIVE-ADMIT: what is let in can be finished, and what is refused could not have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epdsim.events import (
    EngineDied,
    EngineStarted,
    EngineStopped,
    ItemInfo,
    RequestAborted,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRefused,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


class _Need(NamedTuple):
    """What a request needs of something of which there is only so much."""

    what: str
    wanted: int
    most: int


def _needs(asked: RequestQueued | RequestRefused, started: EngineStarted) -> Iterator[_Need]:
    num_tokens = asked.num_prompt_tokens + asked.max_tokens
    if started.max_model_len:
        yield _Need("tokens", num_tokens, started.max_model_len)
    if started.num_gpu_blocks:
        yield _blocks(num_tokens, started)
    if not asked.items:
        return
    room = min(started.encoder_cache_size, started.max_num_encoder_input_tokens)
    yield _Need("embeddings of an item", max(item.num_embeds for item in asked.items), room)
    if started.disable_chunked_mm_input:
        most = started.max_num_batched_tokens
        yield _Need("tokens of an item", _longest(asked.items), min(most, started.long_prefill_token_threshold or most))


def _blocks(num_tokens: int, started: EngineStarted) -> _Need:
    # The last output token is never computed.
    return _Need("blocks", -(-(num_tokens - 1) // started.block_size), started.num_gpu_blocks - 1)


def _lacking(asked: RequestQueued, started: EngineStarted) -> _Need | None:
    """What a request that was let in can never have; an answer may be cut at the end of the longest sequence."""
    num_prompt, most = asked.num_prompt_tokens, started.max_model_len
    if most and num_prompt > most:
        return _Need("tokens", num_prompt, most)
    if started.num_gpu_blocks:
        need = _blocks(min(num_prompt + asked.max_tokens, most) if most else num_prompt, started)
        return need if need.wanted > need.most else None
    return None


def _longest(items: Sequence[ItemInfo]) -> int:
    return max(item.length for item in items)


class LiveAdmit:
    """LIVE-ADMIT: whoever had the engine for itself has ended by its end; whoever was refused needed more than there is.

    Those that shared it may have kept each other from ending, which is LIVE-PROG's matter, unless they need more than there is. Who
    was alone may wait for a KV cache that never comes, or end with its engine.
    """

    def __init__(self) -> None:
        self._alive: dict[str, RequestQueued] = {}
        self._shared = set[str]()

    def by_kind(self) -> Monitor:
        """Follow who is there, and weigh what those who come need."""
        return {
            RequestQueued: self._queued,
            RequestRefused: _judged,
            RequestAborted: self._aborted,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
            EngineDied: self._died,
            EngineStopped: self._stopped,
        }

    def _queued(self, event: RequestQueued, _engine: EngineState) -> None:
        self._alive[event.request_id] = event
        if len(self._alive) > 1:
            self._shared.update(self._alive)
        else:
            self._shared.discard(event.request_id)

    def _aborted(self, event: RequestAborted, engine: EngineState) -> Iterator[Finding]:
        return _let_in(self._alive.pop(event.request_id, None), engine)

    def _ends(self, event: RequestFinished | RequestFailed, engine: EngineState) -> Iterator[Finding]:
        return _ended(self._alive.pop(event.request_id, None), engine)

    def _died(self, _event: EngineDied, _engine: EngineState) -> None:
        self._alive.clear()

    def _stopped(self, event: EngineStopped, engine: EngineState) -> Iterator[Finding]:
        for name in event.unfinished:
            yield from self._unfinished(event, self._alive.get(name), engine)

    def _unfinished(self, event: EngineStopped, asked: RequestQueued | None, engine: EngineState) -> Iterator[Finding]:
        found = list(_let_in(asked, engine))
        yield from found
        if asked is None or found or asked.awaits_kv or asked.request_id in self._shared:
            return
        name = asked.request_id
        told = f"{name} was let in and had the engine for itself, and has not ended by step {event.time_ms:g}"
        yield Broken(told, (name,))


def _let_in(asked: RequestQueued | None, engine: EngineState) -> Iterator[Finding]:
    """Of a request that has not ended: whether it ever could."""
    if asked is None or engine.started is None or engine.beyond:
        return
    if (need := _lacking(asked, engine.started)) is not None:
        told = f"{asked.request_id} was let in, and needs {need.wanted} of {need.most} {need.what}"
        yield Broken(told, (asked.request_id,))


def _ended(asked: RequestQueued | None, engine: EngineState) -> Iterator[Finding]:
    if asked is None or engine.started is None:
        return
    for need in _needs(asked, engine.started):
        if need.wanted == need.most:
            yield Reached(f"{asked.request_id} needs all {need.most} {need.what}")


def _judged(event: RequestRefused, engine: EngineState) -> Iterator[Finding]:
    started = engine.started
    if started is None:
        return
    needs = list(_needs(event, started))
    is_lacking = any(need.wanted > need.most for need in needs)
    # It may lack what is not told.
    is_told = bool(started.max_model_len and started.num_gpu_blocks)
    if is_lacking or (event.is_too_large and is_told):
        yield Reached(f"{event.request_id} is refused")
    if is_lacking or not event.is_too_large or not is_told or engine.beyond:
        return
    if event.num_prompt_tokens >= 1 and event.max_tokens >= 1:
        told = ", ".join(f"{need.wanted} of {need.most} {need.what}" for need in needs)
        yield Broken(f"{event.request_id} is refused, and needs {told}: {event.reason}", (event.request_id,))


LIVE_ADMIT = Property(
    "LIVE-ADMIT",
    "A request is accepted only if some schedule can finish it; otherwise it is refused early.",
    "It waits for ever, or makes the scheduler spin.",
    "engine",
    kind="eventually",
    sometimes="a request is refused, or one that needs all that there is of something ends",
    evidence=("vLLM issues 25890, 42489",),
    twin="`only then`: what could have been finished is not refused",
    monitor=lambda: LiveAdmit().by_kind(),
    exempt={
        "simulated": "a fleet ends requests at its front end, not at an engine; SIM-PROG judges who is stuck there"
    },
    copes=frozenset({"stops", "drafts"}),
)
