"""Workloads drawn from ServeGen's client sets (Alibaba Cloud, arXiv 2505.09999): per client, rates by window and histograms.

Each client arrives by a renewal process whose gaps have the window's fitted shape and the window's measured rate. The fitted scale
is not used: it disagrees with the measured rate in the quieter windows (in `mm-image` its rates add up to 26.8 req/s against 9.47
measured). At the border of windows the rest of a gap is carried over, measured in expected arrivals, so rates hold
exactly on average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.core.records import record
from epdsim.workload.arrivals import Floats
from epdsim.workload.distributions import Integers
from epdsim.workload.media import Position, insert_media
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.servegen_clients import WINDOW_S, Client, read_clients
from epdsim.workload.specs import NonNegativeInt, PositiveInt, SpecModel, absence_remedy, resolve_path
from epdsim.workload.streams import named_stream
from epdsim.workload.workload import Workload

_MODALITIES: tuple[Literal["image", "video", "audio"], ...] = ("image", "video", "audio")


class _ClientArrivals:
    """Arrival times of one client, window by window."""

    __slots__ = ("_carry", "_client", "_rate_scale", "_rng")

    def __init__(self, client: Client, rate_scale: float, rng: np.random.Generator) -> None:
        self._client, self._rate_scale, self._rng = client, rate_scale, rng
        self._carry: float | None = None

    def draw(self, window_s: float, from_s: float) -> Floats:
        """Times in one window from `from_s` on; to be asked for every window in turn."""
        window = self._client.windows.get(window_s)
        if window is None:
            return np.empty(0)
        rate = window.rate_req_s * self._rate_scale
        if self._carry is None:
            self._carry = window.law.draw_first(self._rng)
        mass = rate * (window_s + WINDOW_S - from_s)
        blocks, reached = [np.empty(0)], self._carry
        while reached <= mass:
            ends = reached + np.cumsum(window.law.draw(self._rng, int(mass - reached) + 16))
            blocks.append(np.concatenate(([reached], ends[:-1])))
            reached = float(ends[-1])
        positions = np.concatenate(blocks)
        within = int(np.searchsorted(positions, mass, side="right"))
        self._carry = (float(positions[within]) if within < len(positions) else reached) - mass
        return from_s + positions[:within] / rate


@record
class _Drawn:
    """The requests of one client in one window; `tokens` holds the items' tokens of all requests on end."""

    times_s: Floats
    text: list[int]
    output: list[int]
    counts: dict[str, list[int]]
    tokens: dict[str, list[int]]


def _draw_fields(client: Client, window_s: float, times_s: Floats, rng: np.random.Generator) -> _Drawn:
    draw: Callable[[str, int], Integers] = partial(client.draw, rng, window_s)
    text = draw("text_tokens", len(times_s)) + draw("input_tokens", len(times_s))
    output = np.maximum(draw("output_tokens", len(times_s)), 1)
    counts, tokens = {}, {}
    for modality in _MODALITIES:
        number = draw(f"{modality}_count", len(times_s))
        counts[modality] = number.tolist()
        tokens[modality] = np.maximum(draw(f"{modality}_tokens", int(number.sum())), 1).tolist()
    return _Drawn(times_s, text.tolist(), output.tolist(), counts, tokens)


class ServeGenSpec(SpecModel):
    """A workload drawn from a ServeGen set.

    Attributes:
        path: Folder, or tar archive, of chunk files.
        start_s: Where in the day the workload starts.
        duration_s: How long it lasts.
        rate_scale: Factor on every client's rate.
        limit: At most so many requests.
        clients: Only these; all when absent.
        media_position: Where media stand in the prompt, which the data do not say.
    """

    kind: Literal["servegen"] = "servegen"
    path: Annotated[str, Field(min_length=1)]
    start_s: NonNegativeFloat = 0.0
    duration_s: PositiveFloat = WINDOW_S
    rate_scale: PositiveFloat = 1.0
    limit: PositiveInt | None = None
    clients: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    media_position: Position = "start"

    def requests(self, clients: Sequence[Client], seed: int) -> Iterator[WorkloadRequest]:
        """The requests of the clients merged by time; one window is held in memory."""
        arrivals = [
            _ClientArrivals(client, self.rate_scale, named_stream(seed, "servegen", client.number, "arrivals"))
            for client in clients
        ]
        fields = [named_stream(seed, "servegen", client.number, "fields") for client in clients]
        sent = [0] * len(clients)
        places = [named_stream(seed, "servegen", client.number, "places") for client in clients]
        end_s, taken = self.start_s + self.duration_s, 0
        for window_s in np.arange(self.start_s // WINDOW_S * WINDOW_S, end_s, WINDOW_S).tolist():
            drawn: list[_Drawn] = []
            for client, arrival, rng in zip(clients, arrivals, fields, strict=True):
                times_s = arrival.draw(window_s, max(window_s, self.start_s))
                drawn.append(_draw_fields(client, window_s, times_s, rng))
            owners = np.repeat(np.arange(len(clients)), [len(one.times_s) for one in drawn])
            times_s = np.concatenate([one.times_s for one in drawn])
            order = np.argsort(times_s, kind="stable")
            builders = [_build(one) for one in drawn]
            for time_s, owner in zip(times_s[order].tolist(), owners[order].tolist(), strict=True):
                if time_s >= end_s or taken == self.limit:
                    return
                taken += 1
                sent[owner] += 1
                request_id = f"client{clients[owner].number}-{sent[owner]}"
                text, media, output_tokens = builders[owner](request_id)
                parts = insert_media((text,), media, self.media_position, places[owner])
                yield WorkloadRequest(request_id, (time_s - self.start_s) * 1e3, parts, output_tokens)

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload.

        Raises:
            InputError: The set cannot be used, or the time asked for lies outside it.
        """
        path = resolve_path(self.path, base_dir)
        if not path.exists():
            raise InputError(f"ServeGen set {str(path)!r}", "no such folder or archive", absence_remedy(self.path))
        clients = read_clients(path, self.clients)
        last_s = max(client.end_s for client in clients)
        if self.start_s + self.duration_s > last_s:
            asked = f"start_s {self.start_s:g} with duration_s {self.duration_s:g}"
            raise InputError(
                asked, f"goes beyond the ServeGen set, which ends at {last_s:g} s", "start earlier, or take less"
            )
        statements = [
            f"{len(clients)} clients from {self.start_s:g} s for {self.duration_s:g} s",
            "fields of a request independent",
            f"media at the {self.media_position}, each new",
            f"seed {seed}",
        ]
        if self.rate_scale != 1:
            statements.insert(1, f"rates times {self.rate_scale:g}")
        return Workload(
            path.name.split(".")[0], str(path), partial(self.requests, clients, seed), "; ".join(statements)
        )


def _build(drawn: _Drawn) -> Callable[[str], tuple[TokenRun, list[MediaRef], int]]:
    """The next request of a client in a window, each time it is called."""
    texts, outputs = iter(drawn.text), iter(drawn.output)
    counts = {modality: iter(drawn.counts[modality]) for modality in _MODALITIES}
    tokens = {modality: iter(drawn.tokens[modality]) for modality in _MODALITIES}

    def build(request_id: str) -> tuple[TokenRun, list[MediaRef], int]:
        media = [
            MediaRef(f"{request_id}/{modality}{index}", modality, num_tokens=next(tokens[modality]))
            for modality in _MODALITIES
            for index in range(next(counts[modality]))
        ]
        text = next(texts)
        return TokenRun(request_id, 0, text if text or media else 1), media, next(outputs)

    return build
