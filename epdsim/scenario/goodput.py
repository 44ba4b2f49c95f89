"""Goodput: the highest offered rate at which a point still meets the service level, by bisection over a grid of rates.

That a higher rate does not meet what a lower one misses is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from epdsim.core.records import record
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.points import Point
from epdsim.scenario.schema import ScenarioSpec

if TYPE_CHECKING:
    from epdsim.scenario.search_schema import GoodputSpec


@record
class Goodput:
    """What a search came to.

    Attributes:
        rate: The one to run the point at: the goodput, or the lowest of the search where even that misses the service level.
        req_s: The goodput; 0 where the lowest rate misses.
    """

    rate: float
    req_s: float

    def put_into(self, metrics: RunMetrics) -> RunMetrics:
        """Figures of the run at `rate`, with the goodput among them."""
        return replace(metrics, goodput_req_s=self.req_s)


def searches_goodput(spec: ScenarioSpec, point: Point) -> bool:
    """Whether a point is to be run at its goodput: the file asks for it, and none of the point's axes chooses the rate."""
    if spec.goodput is None:
        return False
    settings = (spec.axes[axis] for axis in point)
    values = zip(settings, point.values(), strict=True)
    chosen = ([setting] if isinstance(setting, str) else setting[str(value)] for setting, value in values)
    return all(spec.goodput.key not in keys for keys in chosen)


def find_goodput(wanted: GoodputSpec, misses: Callable[[float], bool]) -> Goodput:
    """Bisect the rates `low`, `low + step`, ... up to `high`.

    Args:
        wanted: The scenario's section.
        misses: Whether the point misses the service level at a rate.
    """
    rates = wanted.rates
    known, open_to = 0, len(rates)  # so many of the lowest meet it; of the rest, those up to `open_to` may.
    while known < open_to:
        asked = (known + open_to) // 2
        if misses(rates[asked]):
            open_to = asked
        else:
            known = asked + 1
    return Goodput(rates[known - 1], rates[known - 1]) if known else Goodput(rates[0], 0.0)
