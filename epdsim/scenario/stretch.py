"""The busiest stretch of some traffic."""

from __future__ import annotations

import numpy as np

from epdsim.core.records import record
from epdsim.core.request import WARM_UP
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.workload import Workload

_BINS = 5
"""Of a stretch: it starts at a multiple of its fifth part."""
_SHORTEST = 4
"""Traffic that is not so many times as long as the stretch is searched as a whole."""
_PIXELS_PER_TOKEN = 1024
"""Where only one of them is known; what one picture is worth beside another, no more."""


@record
class Traffic:
    """What there is to plan for.

    Attributes:
        num_requests: That are no warm-up.
        stretch_s: From and to, in seconds, of the busiest stretch; None where the traffic is short, or a closed loop.
        in_stretch: Requests of the stretch.
        end_s: When the last request arrives.
        is_by_clock: Whether requests arrive by the clock, and not as those before them end.
    """

    num_requests: int
    stretch_s: tuple[float, float] | None = None
    in_stretch: int = 0
    end_s: float = 0.0
    is_by_clock: bool = True

    @property
    def rate_req_s(self) -> float:
        """Requests per second, of the stretch where there is one."""
        if self.stretch_s is not None:
            return self.in_stretch / (self.stretch_s[1] - self.stretch_s[0])
        return self.num_requests / self.end_s if self.end_s else 0.0


def survey(workload: Workload, length_s: float | None) -> Traffic:
    """Count the requests, and find the busiest stretch.

    Busiest is where the shares of requests, text tokens, pixels and output tokens add up to most: none of the pools is idle then.

    Args:
        workload: By the clock; a closed loop has no busiest stretch.
        length_s: Of the stretch; None looks for none.
    """
    width_ms = (length_s or 1.0) * 1e3 / _BINS
    bins: list[list[float]] = []
    count, end_ms = 0, 0.0
    for request in workload:
        count += request.slo_class != WARM_UP
        end_ms = request.arrival_ms
        while len(bins) <= end_ms / width_ms:
            bins.append([0.0] * 4)
        for place, amount in enumerate(_load(request)):
            bins[-1][place] += amount
    if length_s is None or workload.concurrency is not None or end_ms < _SHORTEST * length_s * 1e3:
        return Traffic(count, end_s=end_ms / 1e3, is_by_clock=workload.concurrency is None)
    loads = np.array(bins)
    shares = (loads / np.maximum(loads.sum(axis=0), 1.0)).sum(axis=1)
    start = int(np.argmax(np.convolve(shares, np.ones(_BINS), "valid")))
    found_s = (start * width_ms / 1e3, (start + _BINS) * width_ms / 1e3)
    return Traffic(count, found_s, int(loads[start : start + _BINS, 0].sum()), end_ms / 1e3)


def _load(request: WorkloadRequest) -> tuple[float, float, float, float]:
    text = pixels = 0.0
    for part in request.parts:
        if isinstance(part, MediaRef):
            pixels += part.height * part.width * part.num_frames or part.num_tokens * _PIXELS_PER_TOKEN
        else:
            text += part.length
    return 1.0, text, pixels, request.output_tokens
