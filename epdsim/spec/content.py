"""Families KEY and RECOMP: what stands in a KV block is what its reader takes it for.

The monitor writes down, for each slot of each block, what was computed into it: a number that stands for all tokens up to there,
the media they belong to, salt and adapter. Equal numbers mean equal content. Reading another number than one's own is a violation,
whatever brought it about.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Literal

from epdsim.events import Admitted, RequestQueued, StepPlanned
from epdsim.spec.engine_state import EngineState, RequestState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


class KvContent:
    """KEY-INJ (blocks that an admission finds) and RECOMP-EQ (blocks that a step reads).

    What a step writes can be read in the same step: a request finds blocks that another one fills in it.

    Args:
        told: Which of the two to tell.
    """

    def __init__(self, told: Literal["found", "read"]) -> None:
        self._told = told
        self._numbers: dict[Hashable, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._chains: dict[str, list[int]] = {}
        self._found: dict[str, int] = {}
        self._resumed = set[str]()

    def by_kind(self) -> Monitor:
        """Write what is computed, then compare what is found and read with it."""
        return {RequestQueued: self._queued, Admitted: self._admitted, StepPlanned: self._planned}

    def _queued(self, event: RequestQueued, _engine: EngineState) -> None:
        self._chains.pop(event.request_id, None)

    def _admitted(self, event: Admitted, engine: EngineState) -> None:
        known = engine.requests.get(event.request_id)
        if engine.started is not None and known is not None and known.queued.prompt_token_ids and event.block_ids:
            self._admit(event, known, engine.started.block_size)

    def _planned(self, event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
        if engine.started is None:
            return
        size = engine.started.block_size
        chunks = list(self._chunks(event, engine, size))
        for known, start, chain in chunks:
            self._write(known, chain, start, size)
        for known, start, chain in chunks:
            yield from self._compare(event, known, start, chain, size)

    def _admit(self, event: Admitted, known: RequestState, size: int) -> None:
        remote = 0 if event.resumed else min(known.queued.num_remote_tokens, event.num_computed_tokens)
        self._write(known, self._chain(known, remote), 0, size)
        if event.resumed:
            self._resumed.add(event.request_id)
        if event.num_computed_tokens > remote:
            self._found[event.request_id] = event.num_computed_tokens

    def _chunks(
        self, event: StepPlanned, engine: EngineState, size: int
    ) -> Iterator[tuple[RequestState, int, list[int]]]:
        """Requests whose content is told, with start and numbers of all positions up to the end of their chunk."""
        for request_id, count in event.num_scheduled_tokens.items():
            known, start = engine.requests.get(request_id), event.num_computed_tokens.get(request_id)
            if known is None or start is None or not known.queued.prompt_token_ids:
                continue
            # KV-CONS and TOK-CONS tell of chunks beyond table and tokens.
            if start + count <= min(len(known.table) * size, known.num_known):
                yield known, start, self._chain(known, start + count)

    def _write(self, known: RequestState, chain: list[int], start: int, size: int) -> None:
        for position in range(start, len(chain)):
            self._slots[known.table[position // size], position % size] = chain[position]

    def _compare(
        self, event: StepPlanned, known: RequestState, start: int, chain: list[int], size: int
    ) -> Iterator[Finding]:
        request_id = known.queued.request_id
        found = self._found.pop(request_id, 0)
        if self._told == "found":
            if any(item.offset < found for item in known.items):
                yield Reached(f"{request_id} finds a prefix with media")
            wrong = self._wrong(known, chain[:found], size)
            begin = f"{request_id} is admitted with {found} tokens found"
        else:
            if request_id in self._resumed:
                yield Reached(f"{request_id} computes after it was preempted")
            wrong = self._wrong(known, chain, size)
            begin = f"step {event.step} computes {request_id} from token {start} on"
        if wrong is not None:
            what = self._what(known, wrong, size)
            yield Broken(f"{begin}, and token {wrong} in block {known.table[wrong // size]} {what}", (request_id,))

    def _wrong(self, known: RequestState, chain: list[int], size: int) -> int | None:
        """The first position whose slot does not hold what it should."""
        slots, table = self._slots, known.table
        for position, number in enumerate(chain):
            if slots.get((table[position // size], position % size)) != number:
                return position
        return None

    def _what(self, known: RequestState, position: int, size: int) -> str:
        found = self._slots.get((known.table[position // size], position % size))
        return "was never computed" if found is None else "is of another prompt"

    def _chain(self, known: RequestState, end: int) -> list[int]:
        """Numbers of the first `end` positions."""
        queued = known.queued
        chain = self._chains.setdefault(queued.request_id, [])
        tokens = [*queued.prompt_token_ids, *known.outputs]
        for position in range(len(chain), min(end, len(tokens))):
            before: Hashable = chain[-1] if chain else (queued.cache_salt, queued.adapter)
            media = tuple(
                (item.identifier, position - item.offset) for item in queued.items if item.offset <= position < item.end
            )
            content = (before, tokens[position], media)
            chain.append(self._numbers.setdefault(content, len(self._numbers)))
        return chain[:end]


PROPERTIES = (
    Property(
        "KEY-INJ",
        "A request finds only blocks whose KV content is its own: tokens, media and their place, adapter and salt.",
        "The answer is about somebody else's picture.",
        "engine",
        sometimes="a request finds a prefix with media",
        evidence=("vLLM PRs 11646, 36708, 49448", "vLLM issue 21175", "LMCache PR 4783", "TensorRT-LLM issue 14125"),
        twin="KEY-PARITY",
        monitor=lambda: KvContent("found").by_kind(),
        copes=frozenset({"stops", "pauses", "pull", "cross attention", "encoding alone"}),
        exempt={"simulated": "prompts of a fleet are told by their length, not by their tokens"},
    ),
    Property(
        "RECOMP-EQ",
        "Every step reads KV content as if the request had run alone, whatever was preempted, evicted, chunked or reordered.",
        "Answers differ from run to run, and nobody can say why.",
        "engine",
        sometimes="a request computes again after a preemption",
        evidence=("vLLM issue 49250", "vLLM PR 45673", "LMCache PR 2069", "TensorRT-LLM issue 17882"),
        monitor=lambda: KvContent("read").by_kind(),
        copes=frozenset({"stops", "pauses", "pull", "cross attention", "encoding alone"}),
        exempt={"simulated": "prompts of a fleet are told by their length, not by their tokens"},
    ),
)
