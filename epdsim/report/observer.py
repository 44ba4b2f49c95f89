"""What a report draws of a run and the metrics do not keep: how latencies are spread, and load over time."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from epdsim.core.records import record
from epdsim.core.request import WARM_UP
from epdsim.events import (
    EncodeRunFinished,
    Event,
    FirstToken,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)

MOST_BINS = 160
"""Points of a line; when a run outgrows them, two become one."""
_CDF_POINTS = 200


@record
class Load:
    """One instance over time, one value per bin.

    Attributes:
        busy: Share of the bin spent in steps or encoder runs.
        running: Most requests that ran at the end of a step, or all through the bin in a step, or a stride, that is longer.
        waiting: Most requests, or items, that waited at the end of a step or an encoder run.
    """

    busy: tuple[float, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]


@record
class RunPicture:
    """What a report draws of a run: small however long the run was.

    Attributes:
        ttft_ms: Quantiles at equal shares from 0 to 1; empty where nothing completed.
        tpot_ms: The same.
        e2e_ms: The same.
        bin_ms: Width of a bin of `loads`.
        loads: By instance.
    """

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    e2e_ms: tuple[float, ...]
    bin_ms: float
    loads: Mapping[str, Load]


class _Bins:
    """One instance's figures in bins of equal width."""

    def __init__(self) -> None:
        self.busy_ms = array("d", bytes(8 * MOST_BINS))
        self.running = array("q", bytes(8 * MOST_BINS))
        self.waiting = array("q", bytes(8 * MOST_BINS))

    def halve(self) -> None:
        """Make one bin of two."""
        empty = MOST_BINS // 2
        pairs = range(0, MOST_BINS, 2)
        self.busy_ms = array("d", [self.busy_ms[i] + self.busy_ms[i + 1] for i in pairs] + [0.0] * empty)
        self.running = array("q", [max(self.running[i : i + 2]) for i in pairs] + [0] * empty)
        self.waiting = array("q", [max(self.waiting[i : i + 2]) for i in pairs] + [0] * empty)

    def spend(self, start_ms: float, end_ms: float, width_ms: float) -> None:
        """Divide busy time among the bins that it lies in."""
        first, last = int(start_ms / width_ms), int(end_ms / width_ms)
        for index in range(first, min(last, MOST_BINS - 1) + 1):
            inside_ms = min(end_ms, (index + 1) * width_ms) - max(start_ms, index * width_ms)
            self.busy_ms[index] += max(0.0, inside_ms)


class RunObserver:
    """Takes a run's events; memory is a float per latency and a fixed number of bins per instance.

    Attributes:
        ttft_ms: Arrival to first token, of completed requests that are no warm-up.
        tpot_ms: Time per output token after the first.
        e2e_ms: Arrival to last token.
    """

    def __init__(self) -> None:
        self.ttft_ms, self.tpot_ms, self.e2e_ms = array("d"), array("d"), array("d")
        self._flights: dict[str, tuple[float, float]] = {}
        self._width_ms = 1.0
        self._end_ms = 0.0
        self._bins: defaultdict[str, _Bins] = defaultdict(_Bins)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, StepFinished):
            self._worked(event, event.duration_ms, event.num_requests, event.num_running, event.num_waiting)
        elif isinstance(event, EncodeRunFinished):
            self._worked(event, event.duration_ms, event.num_items, event.num_items, event.num_waiting)
        elif isinstance(event, RequestArrived):
            if event.slo_class != WARM_UP:
                self._flights[event.request_id] = (event.time_ms, -1.0)
        elif isinstance(event, FirstToken):
            self._first_token(event)
        elif isinstance(event, RequestFinished):
            self._finished(event)
        elif isinstance(event, RequestFailed):
            self._flights.pop(event.request_id, None)

    def _worked(self, event: Event, duration_ms: float, within: int, running: int, waiting: int) -> None:
        while event.time_ms >= self._width_ms * MOST_BINS:
            self._width_ms *= 2
            for bins in self._bins.values():
                bins.halve()
        self._end_ms = max(self._end_ms, event.time_ms)
        bins, index = self._bins[event.instance], int(event.time_ms / self._width_ms)
        start_ms = event.time_ms - duration_ms
        bins.spend(start_ms, event.time_ms, self._width_ms)
        for earlier in range(int(start_ms / self._width_ms) + 1, index):
            bins.running[earlier] = max(bins.running[earlier], within)
        bins.running[index] = max(bins.running[index], running)
        bins.waiting[index] = max(bins.waiting[index], waiting)

    def _first_token(self, event: FirstToken) -> None:
        arrived_ms, first_ms = self._flights.get(event.request_id, (0.0, 0.0))
        if first_ms < 0:
            self._flights[event.request_id] = (arrived_ms, event.time_ms)

    def _finished(self, event: RequestFinished) -> None:
        arrived_ms, first_ms = self._flights.pop(event.request_id, (-1.0, -1.0))
        if arrived_ms < 0:
            return
        self.ttft_ms.append(first_ms - arrived_ms)
        self.e2e_ms.append(event.time_ms - arrived_ms)
        if event.output_tokens > 1:
            self.tpot_ms.append((event.time_ms - first_ms) / (event.output_tokens - 1))

    def picture(self) -> RunPicture:
        """What is drawn of the run."""
        ttft_ms, tpot_ms, e2e_ms = map(_quantiles, (self.ttft_ms, self.tpot_ms, self.e2e_ms))
        return RunPicture(ttft_ms, tpot_ms, e2e_ms, self._width_ms, self._loads())

    def _loads(self) -> Mapping[str, Load]:
        """In order of name, up to the last step of the run."""
        count = min(MOST_BINS, int(self._end_ms / self._width_ms) + 1)
        return {
            name: Load(
                tuple(busy_ms / self._width_ms for busy_ms in bins.busy_ms[:count]),
                tuple(bins.running[:count]),
                tuple(bins.waiting[:count]),
            )
            for name, bins in sorted(self._bins.items())
        }


def _quantiles(values: Sequence[float]) -> tuple[float, ...]:
    if not len(values):
        return ()
    shares = np.linspace(0, 1, min(_CDF_POINTS, len(values) + 1))
    return tuple(np.quantile(np.asarray(values), shares).tolist())
