"""Workloads drawn from BLIS's descriptions: each client's arrivals, conversations and lengths, merged by time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload.blis_file import BlisClient, BlisFile, BlisTurns, is_there, read_blis_file
from epdsim.workload.blis_laws import BlisLengths
from epdsim.workload.media import Position, insert_media
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.specs import MAX_HELD, PositiveInt, SpecModel, absence_remedy, resolve_path
from epdsim.workload.streams import named_stream
from epdsim.workload.trace_files import require_file
from epdsim.workload.workload import Workload

_LEAST_REQ_S = 1e-15
_MODALITIES = ("image", "audio", "video")
_BLOCK = 64
"""Draws at a time of each client; part of what a seed means, so a fixed number."""


class BlisYamlSpec(SpecModel):
    """A workload that BLIS's YAML describes. Arrivals and lengths follow its laws; the draws are not those of its generator.

    Attributes:
        path: The file.
        limit: At most so many requests; `num_requests` of the file holds too.
        duration_s: End at this time; `horizon` of the file holds too.
        rate_scale: Factor on all rates.
        answer_s: How long an answer takes in a conversation whose next turn waits for it: to be stated where the file has such.
        media_position: Where media stand in the prompt, which the file does not say.
    """

    kind: Literal["blis-yaml"] = "blis-yaml"
    path: Annotated[str, Field(min_length=1)]
    limit: PositiveInt | None = None
    duration_s: PositiveFloat | None = None
    rate_scale: PositiveFloat = 1.0
    answer_s: NonNegativeFloat | None = None
    media_position: Position = "start"

    def requests(self, file: BlisFile, clients: list[BlisClient], seed: int) -> Iterator[WorkloadRequest]:
        """The requests of all clients by time."""
        prefixes = file.prefix_tokens(clients)
        end_us = min(file.end_us, (self.duration_s or math.inf) * 1e6)
        most = min(file.num_requests or math.inf, self.limit or math.inf)
        drawn = (
            _ClientDraws(self, file, client, rate * self.rate_scale, prefixes, seed).requests(end_us)
            for client, rate in zip(clients, file.rates_req_s(clients), strict=True)
        )
        merged = heapq.merge(*drawn, key=lambda request: request.arrival_ms)
        yield from islice(merged, None if math.isinf(most) else int(most))

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload.

        Raises:
            InputError: The file cannot be used.
        """
        path = require_file(resolve_path(self.path, base_dir), "BLIS workload", absence_remedy(self.path))
        file = read_blis_file(path)
        clients, what = file.expanded(), f"BLIS workload {path}"
        if len(clients) > MAX_HELD:
            raise InputError(what, f"has {len(clients)} clients", f"{MAX_HELD} can be drawn at once")
        names = [client.name for client in clients]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(what, f"has two clients named {twice!r}", "give them different ids")
        if math.isinf(file.end_us) and not (file.num_requests or self.limit or self.duration_s):
            raise InputError(what, "has no end", "give limit or duration_s, or num_requests or horizon in the file")
        if file.concurrency and not (file.num_requests or self.limit):
            raise InputError(what, "is a closed loop that does not say of how many requests", "give limit")
        waits = [client for client in clients if client.behaviour.turns and client.behaviour.closed_loop is not False]
        if waits and self.answer_s is None:
            rule = f"has conversations (of {waits[0].name!r}) whose next turn waits for the answer"
            raise InputError(what, rule, "state answer_s, how long an answer takes, or closed_loop: false in the file")
        told = [f"{len(clients)} clients of a BLIS description, drawn anew (not BLIS's own draws)", f"seed {seed}"]
        if waits:
            told.insert(1, f"an answer in a conversation is taken to last {self.answer_s:g} s")
        if self.rate_scale != 1:
            told.insert(1, f"rates times {self.rate_scale:g}")
        make = partial(self.requests, file, clients, seed)
        return Workload(path.name.split(".")[0], str(path), make, "; ".join(told), file.concurrency)


class _ClientDraws:
    """What one client sends, each matter from a stream of its own."""

    def __init__(
        self,
        spec: BlisYamlSpec,
        file: BlisFile,
        client: BlisClient,
        rate_req_s: float,
        prefixes: dict[str, int],
        seed: int,
    ) -> None:
        self._spec, self._client, self._rate_req_s = spec, client, rate_req_s
        self._stream = partial(named_stream, seed, spec.kind, client.name)
        self._is_closed = file.concurrency is not None
        behaviour = client.behaviour
        group = behaviour.prefix_group
        self._prefix = (TokenRun(("blis-prefix", group), 0, prefixes[group]),) if group else ()
        self._slo_class, self._leaves_ms = file.slo_class(behaviour), (behaviour.timeout or 0) / 1e3
        self._inputs = _drawn(behaviour.input_distribution, self._stream("input"))
        self._outputs = _drawn(behaviour.output_distribution, self._stream("output"))

    def requests(self, end_us: float) -> Iterator[WorkloadRequest]:
        """All of them by time."""
        if self._client.behaviour.turns:
            return self._conversations(self._client.behaviour.turns, end_us)
        return self._alone(end_us)

    def _starts_us(self, end_us: float) -> Iterator[float]:
        """When requests, or conversations, start: arrivals that fall outside the client's windows are dropped."""
        windows = self._client.windows_us
        last_us = min(end_us, max((end for _, end in windows), default=math.inf))
        for time_us in self._arrivals_us():
            if time_us >= last_us:
                return
            if is_there(windows, time_us):
                yield time_us

    def _arrivals_us(self) -> Iterator[float]:
        rng, arrival = self._stream("arrivals"), self._client.behaviour.arrival
        if self._is_closed:
            yield from (0.0 for _ in count())
        if self._client.exactly:
            number, span_us = self._client.exactly
            gaps = rng.standard_exponential(number)
            # The last of them falls on the end of the span, which is still part of it.
            yield from np.minimum(np.cumsum(gaps) / gaps.sum() * span_us, np.nextafter(span_us, 0.0)).tolist()
            return
        mean_us, law = 1e6 / max(self._rate_req_s, _LEAST_REQ_S), arrival.law
        if law is None:
            yield from (number * mean_us for number in count(1))
            return
        reached = law.draw_first(rng)
        while True:
            for gap in law.draw(rng, _BLOCK).tolist():
                yield reached * mean_us
                reached += gap

    def _request(self, request_id: str, time_us: float, parts: Parts, output: int, session: str) -> WorkloadRequest:
        return WorkloadRequest(
            request_id,
            time_us / 1e3,
            (*self._prefix, *parts),
            output,
            session,
            slo_class=self._slo_class,
            leaves_ms=self._leaves_ms,
        )

    def _alone(self, end_us: float) -> Iterator[WorkloadRequest]:
        media, places = self._media(), self._stream("places")
        for number, time_us in enumerate(self._starts_us(end_us)):
            request_id = f"{self._client.name}-{number}"
            if media is None:
                parts: Parts = (TokenRun(request_id, 0, next(self._inputs)),)
            else:
                text, items = media(request_id)
                own = (TokenRun(request_id, 0, text if text or items else 1),)
                parts = insert_media(own, items, self._spec.media_position, places)
            yield self._request(request_id, time_us, parts, next(self._outputs), "")

    def _media(self) -> _MediaDraws | None:
        given = self._client.behaviour.multimodal
        if given is None:
            return None
        text = _drawn(given.text_distribution, self._stream("text")) if given.text_distribution else None
        items = {
            modality: (_drawn(pair[0], self._stream(modality, "count")), _drawn(pair[1], self._stream(modality)))
            for modality in _MODALITIES
            if (pair := given.of(modality))
        }
        return _MediaDraws(text, items)

    def _conversations(self, turns: BlisTurns, end_us: float) -> Iterator[WorkloadRequest]:
        """Conversations overlap: the next turn of each waits in a heap."""
        waiting: list[tuple[float, int, int, int]] = []
        starts = enumerate(self._starts_us(end_us))
        if turns.single_session:
            first_us = min((start for start, _ in self._client.windows_us), default=0.0)
            late = next(iter(self._arrivals_us())) + first_us
            starts = enumerate([late] if late < end_us and is_there(self._client.windows_us, late) else [])
        for number, start_us in starts:
            yield from self._until(waiting, turns, start_us, end_us)
            heapq.heappush(waiting, (start_us, number, 0, 0))
        yield from self._until(waiting, turns, math.inf, end_us)

    def _until(
        self, waiting: list[tuple[float, int, int, int]], turns: BlisTurns, until_us: float, end_us: float
    ) -> Iterator[WorkloadRequest]:
        while waiting and waiting[0][0] < until_us:
            time_us, number, turn, said = heapq.heappop(waiting)
            if time_us >= end_us:
                continue
            own, output = next(self._inputs), next(self._outputs)
            session = f"{self._client.name}-{number}"
            grows = turns.context_growth == "accumulate"
            # What a conversation has said so far is one text, of which each prompt is a longer beginning.
            content = ("blis-session", session) if grows else f"{session}/turn{turn}"
            if is_there(self._client.windows_us, time_us):
                parts = (TokenRun(content, 0, said + own),)
                yield self._request(f"{session}/turn{turn}", time_us, parts, output, session)
            if turn + 1 < turns.max_rounds:
                waits = self._client.behaviour.closed_loop is not False
                answer_us = (self._spec.answer_s or 0.0) * 1e6 if waits else float(output)
                next_us = time_us + answer_us + turns.think_time_us
                heapq.heappush(waiting, (next_us, number, turn + 1, said + own + output if grows else 0))


class _MediaDraws:
    """Text and media of a client's next request, each time it is called."""

    def __init__(self, text: Iterator[int] | None, items: dict[str, tuple[Iterator[int], Iterator[int]]]) -> None:
        self._text, self._items = text, items

    def __call__(self, request_id: str) -> tuple[int, list[MediaRef]]:
        media = [
            MediaRef(f"{request_id}/{modality}{index}", modality, num_tokens=next(tokens))
            for modality, (counts, tokens) in self._items.items()
            for index in range(next(counts))
        ]
        return next(self._text) if self._text else 0, media


def _drawn(lengths: BlisLengths, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from lengths.draw(rng, _BLOCK)
