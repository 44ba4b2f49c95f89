"""Two policies, or two versions of a scenario, compared over the same seeds.

Both sides see the same requests at the same times (common random numbers), so what is judged is the mean of the differences per
seed, with a confidence interval by Student's t over the seeds. A difference is a regression when even the interval's kinder end
is worse than what was stated as tolerable. Where the seeds change nothing (a trace without random parts) they are one sample told
several times: the change stands, without an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import isfinite, sqrt
from statistics import mean, stdev

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, described, metric, more_is_better

DEFAULT_FIGURES = (
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "tpot_ms.p99",
    "e2e_ms.mean",
    "request_throughput_per_s",
)
NOT_SERVED = "requests not served"
CONFIDENCE = 0.95


@record
class Difference:
    """One figure at one point, head against base.

    Attributes:
        point: Axis values.
        figure: Its dotted name.
        base: Mean over the seeds.
        head: Mean over the seeds.
        low_percent: Lower end of the confidence interval of the change, in percent of `base`; without an interval the change.
        high_percent: Upper end.
        num_seeds: Seeds that it was taken over, which is 1 where all seeds give the same runs; then there is no interval.
    """

    point: Point
    figure: str
    base: float
    head: float
    low_percent: float
    high_percent: float
    num_seeds: int

    @property
    def has_interval(self) -> bool:
        """Whether chance was measured."""
        return self.num_seeds > 1

    @property
    def change_percent(self) -> float:
        """Of the means."""
        return _percent(self.head - self.base, self.base)

    @property
    def worse_by_percent(self) -> float:
        """How much worse the head is at least, within the confidence; 0 or less when it may be no worse."""
        return -self.high_percent if more_is_better(self.figure) else self.low_percent

    def is_regression(self, tolerated_percent: float) -> bool:
        """Whether it is worse by more than is tolerated: for certain as far as the seeds say, or in its one pair of runs."""
        if self.figure == NOT_SERVED and self.head > self.base:
            return True
        return self.worse_by_percent > tolerated_percent

    def __str__(self) -> str:
        place = f" at {described(self.point)}" if self.point else ""
        return f"{self.figure}{place}: {self.base:,.4g} to {self.head:,.4g} ({change_told(self.change_percent)})"


MOST_PERCENT = 900.0
"""From ten times as much on, a change is told as a factor."""


def change_told(*percents: float) -> str:
    """A change, or the two ends of its interval, in percent; as factors where percents would only be long."""
    if all(abs(one) < MOST_PERCENT for one in percents):
        return " to ".join(f"{one:+.1f}" for one in percents) + " %"
    if not all(map(isfinite, percents)):
        return "from nothing"
    factors = [1 + one / 100 for one in percents]
    return " to ".join(f"{one:,.0f}" if abs(one) >= 100 else f"{one:.3g}" for one in factors) + " times"


def common_points(base: Scenario, head: Scenario) -> tuple[Point, ...]:
    """The points that both sides run.

    Raises:
        InputError: There is none.
    """
    shared = tuple(point for point in base.points if point in head.points)
    if not shared:
        raise InputError(str(head.file.path), f"it runs no point that {base.file.path} runs", "give both the same axes")
    return shared


def differences(
    points: Sequence[Point],
    figures: Sequence[str],
    base: Sequence[Sequence[RunMetrics]],
    head: Sequence[Sequence[RunMetrics]],
) -> list[Difference]:
    """Every figure at every point.

    Args:
        points: Of both sides.
        figures: Dotted names.
        base: By point, the metrics of each seed.
        head: The same of the other side, with the same seeds.

    Returns:
        Those of the figures that every run of a point has. Beside them stand the requests that were not served, where there are
        any: of a side that serves less the latencies say nothing.
    """
    found: list[Difference] = []
    for point, *sides in zip(points, base, head, strict=True):
        before, after = (side[:1] for side in sides) if _seeds_change_nothing(*sides) else sides
        lost = [[float(one.unserved) for one in side] for side in (before, after)]
        if any(map(any, lost)):
            found.append(_difference(point, NOT_SERVED, *lost))
        for figure in figures:
            if not missing(figure, (*before, *after)):
                values = [[metric(one, figure) for one in side] for side in (before, after)]
                found.append(_difference(point, figure, *values))
    return found


def _seeds_change_nothing(*sides: Sequence[RunMetrics]) -> bool:
    return all(one == side[0] for side in sides for one in side)


def missing(figure: str, runs: Sequence[RunMetrics]) -> str:
    """Why a figure was not taken of some of the runs; empty when it was of all."""
    for one in runs:
        try:
            metric(one, figure)
        except InputError as error:
            return str(error)
    return ""


def _difference(point: Point, figure: str, base: Sequence[float], head: Sequence[float]) -> Difference:
    changes = [after - before for before, after in zip(base, head, strict=True)]
    middle, half = mean(changes), 0.0
    if len(changes) > 1:
        half = _student_t(len(changes) - 1) * stdev(changes) / sqrt(len(changes))
    level = mean(base)
    ends = sorted((_percent(middle - half, level), _percent(middle + half, level)))
    return Difference(point, figure, level, mean(head), ends[0], ends[1], len(changes))


def _percent(change: float, base: float) -> float:
    if base:
        return 100.0 * change / abs(base)
    return 0.0 if not change else float("inf") if change > 0 else float("-inf")


def check_installed() -> None:
    """See that intervals can be made, before the work that they judge.

    Raises:
        InputError: scipy is not installed.
    """
    if find_spec("scipy") is None:
        raise InputError(
            "epdsim compare", "it takes Student's t from scipy, which is not installed", "pip install 'epdsim[report]'"
        )


def _student_t(freedom: int) -> float:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit  # noqa: PLC0415 - an extra

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
