"""What events say of an engine's state: requests, what workers hold of them, which embeddings are resident.

It follows from the events alone, whoever sent them, so that monitors need not keep the same books each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epdsim.events import (
    Admitted,
    CacheReset,
    EncoderFed,
    EngineStarted,
    Event,
    Gathered,
    InputQueued,
    ItemInfo,
    PayloadsSent,
    Preempted,
    RequestQueued,
    StepPlanned,
    StepYielded,
)

PAYLOADS = ("full", "address")
"""What stands for an item's payload, of the kinds that workers are sent."""


@dataclass(slots=True)
class RequestState:
    """One request as the workers know it; its life: queued, admitted, perhaps preempted and admitted again, gone.

    Attributes:
        queued: As it arrived.
        held: Per item, what the workers have been sent of it: `"full"`, `"metadata"`, `"empty"`, `"address"` or `"none"`.
        admissions: How often it was admitted.
        is_running: Whether it is admitted and not preempted.
        table: Its KV blocks.
        outputs: Sampled tokens, at most as many as it asks for.
        stripped: Items whose payload an admission left out, so far.
        reopened: Those of them that its last admission found uncovered again.
        added: Media of a session's further inputs.
        num_told: Items that workers were told of since they last knew nothing of it, as often as they were.
        media_end: One past the last token of its items; a chunk from there on takes no embeddings.
    """

    queued: RequestQueued
    held: list[str]
    admissions: int = 0
    is_running: bool = False
    table: list[int] = field(default_factory=list[int])
    outputs: list[int] = field(default_factory=list[int])
    stripped: frozenset[int] = frozenset()
    reopened: tuple[int, ...] = ()
    added: Sequence[ItemInfo] = ()
    num_told: int = 0
    media_end: int = 0

    @property
    def items(self) -> Sequence[ItemInfo]:
        """Its media, those of a session's further inputs last, with offsets that count from the first token of their input."""
        return [*self.queued.items, *self.added] if self.added else self.queued.items

    @property
    def num_known(self) -> int:
        """Tokens of prompt and output so far."""
        return self.queued.num_prompt_tokens + len(self.outputs)


@dataclass(slots=True)
class EngineState:
    """One engine.

    Attributes:
        started: Its settings; None when it did not tell them.
        requests: Those that workers know or that wait, by id; a request that ended stays until the workers hear of it.
        resident: Embeddings in the workers' encoder cache by identifier, once the last step's frees, loads and runs are done.
        resident_before: Those that were before the last planned step.
        plan: The last planned step.
        tells_tokens: Whether it tells what steps yield.
        has_media: Whether it may hold or have been sent a media item: not so once it began, before the first one comes or it does
            as if it had.
        beyond: What its events do not tell in full.
    """

    started: EngineStarted | None = None
    requests: dict[str, RequestState] = field(default_factory=dict[str, RequestState])
    resident: dict[str, int] = field(default_factory=dict[str, int])
    resident_before: Mapping[str, int] = field(default_factory=dict[str, int])
    plan: StepPlanned | None = None
    tells_tokens: bool = False
    has_media: bool = True
    beyond: tuple[str, ...] = ()
    _gathers: list[tuple[str, int]] | None = None

    def follow_by_kind(self) -> dict[type[Event], Callable[[Any], None]]:
        """By kind of event how the state follows from it; of no other kind anything does."""
        return {
            EngineStarted: self._start,
            RequestQueued: self._queue,
            InputQueued: self._queue_input,
            Admitted: self._admit,
            PayloadsSent: self._send,
            Preempted: self._preempt,
            StepPlanned: self._plan,
            EncoderFed: self._touch_media,
            Gathered: self._touch_media,
            StepYielded: self._yield,
            CacheReset: self._reset,
        }

    def gathers(self) -> Sequence[tuple[str, int]]:
        """Requests and items whose embeddings the planned step's chunks need; none for an engine that computes no prompt."""
        if self._gathers is None:
            self._gathers = list(self._find_gathers())
        return self._gathers

    def _find_gathers(self) -> Iterator[tuple[str, int]]:
        plan = self.plan
        if plan is None or self.started is None or self.started.ec_role == "producer":
            return
        computed = plan.num_computed_tokens
        for request_id, count in plan.num_scheduled_tokens.items():
            known, start = self.requests.get(request_id), computed.get(request_id)
            if known is None or start is None or start >= known.media_end:
                continue
            for index, item in enumerate(known.items):
                if item.takes_embeds(start, start + count):
                    yield request_id, index

    def _start(self, event: EngineStarted) -> None:
        """An engine that comes back has lost all that it held."""
        self.started = event
        self.beyond = tuple(event.beyond)
        self.requests.clear()
        self.resident.clear()
        self.plan = self._gathers = None
        self.has_media = False

    def _queue(self, event: RequestQueued) -> None:
        known = self.requests[event.request_id] = RequestState(event, ["none"] * len(event.items))
        if event.items:
            self.has_media = True
            known.media_end = max(item.end for item in event.items)

    def _queue_input(self, event: InputQueued) -> None:
        if not event.items:
            return
        self.has_media = True
        known = self.requests.get(event.request_id)
        if known is not None:
            known.added = [*known.added, *event.items]
            known.held += ["none"] * len(event.items)
            known.media_end = max(known.media_end, *(item.end for item in event.items))

    def _admit(self, event: Admitted) -> None:
        known = self.requests.get(event.request_id)
        if known is None:
            return
        known.admissions += 1
        known.is_running = True
        known.table = list(event.block_ids)
        if known.stripped:
            num_computed = event.num_computed_tokens
            known.reopened = tuple(i for i in sorted(known.stripped) if known.items[i].end > num_computed)
        if event.payloads:
            known.num_told += len(event.payloads)
            known.held = [*event.payloads, *known.held[len(event.payloads) :]]
            known.stripped |= {index for index, kind in enumerate(event.payloads) if kind not in PAYLOADS}

    def _send(self, event: PayloadsSent) -> None:
        self.has_media = True
        known = self.requests.get(event.request_id)
        if known is not None:
            for index, kind in event.payloads.items():
                known.held[index] = kind

    def _touch_media(self, _event: EncoderFed | Gathered) -> None:
        self.has_media = True

    def _preempt(self, event: Preempted) -> None:
        known = self.requests.get(event.request_id)
        if known is not None:
            known.is_running = False
            known.table = []
            known.num_told = 0

    def _plan(self, event: StepPlanned) -> None:
        self.plan, self._gathers = event, None
        requests = self.requests
        for request_id in event.finished:
            requests.pop(request_id, None)
        for request_id, blocks in event.new_block_ids.items():
            known = requests.get(request_id)
            if known is not None:
                known.table += blocks
        self.resident_before = self.resident
        if event.free_encoder_mm_hashes or event.ec_loads or event.scheduled_encoder_inputs:
            self._plan_media(event)

    def _plan_media(self, event: StepPlanned) -> None:
        self.has_media = True
        self.resident_before = dict(self.resident)
        for identifier in event.free_encoder_mm_hashes:
            self.resident.pop(identifier, None)
        for identifier in event.ec_loads:
            self.resident[identifier] = self._num_embeds(identifier, event)
        for request_id, indices in event.scheduled_encoder_inputs.items():
            known = self.requests.get(request_id)
            for index in indices if known is not None else ():
                item = self.requests[request_id].items[index]
                self.resident[item.identifier] = item.num_embeds

    def _yield(self, event: StepYielded) -> None:
        self.tells_tokens = True
        for request_id, tokens in event.tokens.items():
            known = self.requests.get(request_id)
            if known is not None:
                known.outputs += tokens
                del known.outputs[known.queued.max_tokens :]

    def _reset(self, event: CacheReset) -> None:
        """The workers' caches are reset with the scheduler's books."""
        if event.which == "encoder":
            self.resident.clear()

    def _num_embeds(self, identifier: str, event: StepPlanned) -> int:
        """Size of an item that is loaded.

        That of the first request of the step whose chunk takes embeddings of it; of what is loaded ahead, that of the first one
        that has the item.
        """
        for request_id, count in event.num_scheduled_tokens.items():
            known, start = self.requests.get(request_id), event.num_computed_tokens.get(request_id)
            for item in known.items if known is not None else ():
                if item.identifier == identifier and (start is None or item.takes_embeds(start, start + count)):
                    return item.num_embeds
        items = (item for known in self.requests.values() for item in known.items)
        return next((item.num_embeds for item in items if item.identifier == identifier), 0)
