"""Service levels: bounds on figures of a run, judged at its end, and given up on as soon as they cannot hold any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.core.request import WARM_UP
from epdsim.events import Event, FirstToken, RequestArrived, RequestFailed, RequestFinished
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.points import metric

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

FEW = 10
"""So many values beyond a quantile, or more, are enough not to be told."""


@record
class Missed:
    """A bound that does not hold.

    Attributes:
        name: The figure.
        bound: The most that it may be.
        value: What it is; None where the run was given up or nothing completed.
    """

    name: str
    bound: float
    value: float | None

    def __str__(self) -> str:
        told = "for certain over" if self.value is None else f"{self.value:.4g} over"
        return f"{self.name} {told} {self.bound:g}"


class SloMissedError(Exception):
    """A run was given up: a bound cannot hold any more, however the rest of the run goes.

    No error of a request: the simulation of one, in which it may be raised, is not to take it for the request's own.
    """

    def __init__(self, missed: Missed) -> None:
        # SimPy rebuilds exceptions from their arguments.
        super().__init__(missed)
        self.missed = missed


def missed(metrics: RunMetrics, slo: Mapping[str, float]) -> tuple[Missed, ...]:
    """The bounds that a finished run does not meet; a request that was not served meets none.

    A client that left without a first token was not served; one that had some left of itself.
    """
    if metrics.unserved:
        return (Missed("requests not served", 0.0, float(metrics.unserved)),)
    try:
        found = {name: metric(metrics, name) for name in slo}
    except InputError as error:
        raise error.at("service level") from error
    return tuple(Missed(name, slo[name], value) for name, value in found.items() if value > slo[name])


def decided_by_few(metrics: RunMetrics, slo: Mapping[str, float]) -> list[str]:
    """A sentence for bounded quantiles beyond which a finished run has few values: another handful may be another verdict."""
    figures: dict[tuple[int, int], list[str]] = {}
    for name in slo:
        head, _, quantile = name.partition(".")
        values = getattr(metrics, head)
        if quantile in QUANTILES and quantile != "max" and values is not None:
            beyond = max(1, _num_beyond(quantile, values.count))
            if beyond < FEW:
                figures.setdefault((beyond, values.count), []).append(name)
    return [
        f"{' and '.join(names)}: decided by the {f'{beyond} ' if beyond > 1 else ''}slowest of {count:,} requests, as if "
        "longer traffic had no other"
        for (beyond, count), names in figures.items()
    ]


def _num_beyond(quantile: str, count: int) -> int:
    """How many of so many values, sorted, come after the lower one of the two neighbours between which the quantile lies."""
    return count - 1 - floor(QUANTILES[quantile] * (count - 1))


class SloGuard:
    """Takes a run's events and raises `SloMissedError` once too many requests are over a bound for it to hold at the end.

    Only quantiles of TTFT and TPOT can be given up on early; all others are judged at the end.

    Args:
        slo: Bounds by figure.
        num_requests: Measured requests of the whole run.
    """

    def __init__(self, slo: Mapping[str, float], num_requests: int) -> None:
        self._ttft = _Tail.of("ttft_ms", slo, num_requests)
        self._tpot = _Tail.of("tpot_ms", slo, num_requests)
        self._waiting: dict[str, float] = {}
        self._first_ms: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RequestArrived):
            if event.slo_class != WARM_UP:
                self._waiting[event.request_id] = event.time_ms
        elif isinstance(event, FirstToken):
            self._first_token(event)
        elif isinstance(event, RequestFinished):
            self._finished(event)
        elif isinstance(event, RequestFailed):
            self._failed(event)
        self._count_late(event.time_ms)

    def _first_token(self, event: FirstToken) -> None:
        self._first_ms.setdefault(event.request_id, event.time_ms)
        arrived_ms = self._waiting.pop(event.request_id, None)
        if arrived_ms is not None and self._ttft is not None:
            self._ttft.take(event.time_ms - arrived_ms)

    def _finished(self, event: RequestFinished) -> None:
        first_ms = self._first_ms.pop(event.request_id, event.time_ms)
        if self._tpot is not None and event.output_tokens > 1:
            self._tpot.take((event.time_ms - first_ms) / (event.output_tokens - 1))

    def _failed(self, event: RequestFailed) -> None:
        had_first_token = self._first_ms.pop(event.request_id, None) is not None
        if not (event.aborted and had_first_token):
            raise SloMissedError(Missed("requests not served", 0.0, None))

    def _count_late(self, now_ms: float) -> None:
        """Count requests that are late already, whenever their token comes; they wait in order of arrival."""
        while self._ttft is not None and self._waiting:
            request_id, arrived_ms = next(iter(self._waiting.items()))
            if now_ms - arrived_ms <= self._ttft.bound:
                return
            del self._waiting[request_id]
            self._ttft.take(now_ms - arrived_ms)


@dataclass(slots=True)
class _Tail:
    """How many of a figure's values are over the bound of its highest quantile, and how many may be.

    A quantile lies between two neighbours of the sorted values: it is over for certain once the lower one is.
    """

    name: str
    bound: float
    allowed: int
    over: int = 0

    @classmethod
    def of(cls, figure: str, slo: Mapping[str, float], num_requests: int) -> _Tail | None:
        bounds = [
            (name, bound, _num_beyond(name.partition(".")[2], num_requests))
            for name, bound in slo.items()
            if name.partition(".")[0] == figure and name.partition(".")[2] in QUANTILES
        ]
        return cls(*min(bounds, key=lambda one: one[2])) if bounds else None

    def take(self, value: float) -> None:
        self.over += value > self.bound
        if self.over > self.allowed:
            raise SloMissedError(Missed(self.name, self.bound, None))


class GoodCounter:
    """Counts requests that are no warm-up and whose own latencies all are within the bounds of a service level.

    Args:
        slo: Bounds by figure; those of TTFT, TPOT and E2E, whatever the quantile, bound each request here.
    """

    def __init__(self, slo: Mapping[str, float]) -> None:
        self.num_good = 0
        self._most = {
            name: min((bound for figure, bound in slo.items() if figure.partition(".")[0] == name), default=inf)
            for name in ("ttft_ms", "tpot_ms", "e2e_ms")
        }
        self._arrived_ms: dict[str, float] = {}
        self._first_ms: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RequestArrived):
            if event.slo_class != WARM_UP:
                self._arrived_ms[event.request_id] = event.time_ms
        elif isinstance(event, FirstToken):
            self._first_ms.setdefault(event.request_id, event.time_ms)
        elif isinstance(event, (RequestFinished, RequestFailed)):
            arrived_ms = self._arrived_ms.pop(event.request_id, None)
            first_ms = self._first_ms.pop(event.request_id, event.time_ms)
            if arrived_ms is not None and isinstance(event, RequestFinished):
                spent = {"ttft_ms": first_ms - arrived_ms, "e2e_ms": event.time_ms - arrived_ms}
                spent["tpot_ms"] = (event.time_ms - first_ms) / max(1, event.output_tokens - 1)
                self.num_good += all(spent[name] <= most for name, most in self._most.items())
