"""Arrival processes: when requests arrive, in seconds, drawn in blocks.

A renewal process starts in equilibrium: the first gap is that of an observer who comes at a random moment, so the expected number
of arrivals in any interval is rate times length from the start on. A process that starts with an arrival at zero would have
(cv² - 1) / 2 too many.
"""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from epdsim.core.records import record
from epdsim.workload.specs import SpecModel

Floats = NDArray[np.float64]

BLOCK = 1024
"""Requests drawn at a time; part of what a seed means, so a fixed number."""

MAX_CV = 20.0
MIN_WEIBULL_SHAPE = 0.1
"""Limits of the gap laws: beyond them nearly all gaps round to nothing and the mean is carried by gaps that hardly ever come."""


@record
class GapLaw:
    """Gaps between arrivals with mean 1.

    Attributes:
        family: `"Gamma"` or `"Weibull"`.
        shape: Of the law; 1 is exponential for both. Smaller is burstier.
    """

    family: Literal["Gamma", "Weibull"]
    shape: float

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` independent gaps, shape `(count,)`."""
        if self.family == "Gamma":
            return rng.standard_gamma(self.shape, count) / self.shape
        return rng.weibull(self.shape, count) / math.gamma(1 + 1 / self.shape)

    def draw_first(self, rng: np.random.Generator) -> float:
        """What is left of the gap that a random moment falls into: a uniform share of a length-biased gap."""
        if self.family == "Gamma":
            gap = rng.standard_gamma(self.shape + 1) / self.shape
        else:
            gap = rng.standard_gamma(1 + 1 / self.shape) ** (1 / self.shape) / math.gamma(1 + 1 / self.shape)
        return float(gap * rng.random())

    @property
    def cv(self) -> float:
        """Coefficient of variation."""
        if self.family == "Gamma":
            return 1 / math.sqrt(self.shape)
        return math.sqrt(math.gamma(1 + 2 / self.shape) / math.gamma(1 + 1 / self.shape) ** 2 - 1)


EXPONENTIAL = GapLaw("Gamma", 1.0)


def renewal_blocks(law: GapLaw, rng: np.random.Generator) -> Iterator[Floats]:
    """Arrival times at rate 1, endless, in blocks of `BLOCK`."""
    elapsed, first = 0.0, law.draw_first(rng)
    while True:
        gaps = law.draw(rng, BLOCK)
        if first is not None:
            gaps[0], first = first, None
        times = elapsed + np.cumsum(gaps)
        elapsed = float(times[-1])
        yield times


class _Rated(SpecModel):
    rate_req_s: PositiveFloat


class PoissonArrivals(_Rated):
    """Independent arrivals."""

    kind: Literal["poisson"] = "poisson"

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Endless times in seconds, in blocks of `BLOCK`."""
        return (times / self.rate_req_s for times in renewal_blocks(EXPONENTIAL, rng))


class GammaArrivals(_Rated):
    """Gamma gaps with a coefficient of variation: 1 is Poisson, above is burstier (vllm bench's burstiness is 1 / cv²)."""

    kind: Literal["gamma"] = "gamma"
    cv: Annotated[PositiveFloat, Field(le=MAX_CV)]

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Endless times in seconds, in blocks of `BLOCK`."""
        return (times / self.rate_req_s for times in renewal_blocks(GapLaw("Gamma", self.cv**-2), rng))


class WeibullArrivals(_Rated):
    """Weibull gaps with a shape: 1 is Poisson, below is burstier."""

    kind: Literal["weibull"] = "weibull"
    shape: Annotated[float, Field(ge=MIN_WEIBULL_SHAPE)]

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Endless times in seconds, in blocks of `BLOCK`."""
        return (times / self.rate_req_s for times in renewal_blocks(GapLaw("Weibull", self.shape), rng))


class ConstantArrivals(_Rated):
    """One arrival every 1 / rate seconds, the first at 0."""

    kind: Literal["constant"] = "constant"

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:  # noqa: ARG002 - one signature for all processes
        """Endless times in seconds, in blocks of `BLOCK`."""
        start = 0
        while True:
            yield np.arange(start, start + BLOCK) / self.rate_req_s
            start += BLOCK


class BurstArrivals(_Rated):
    """Poisson arrivals whose rate switches: `on_s` seconds at `rate_req_s`, then `off_s` seconds at `off_rate_req_s`, and again."""

    kind: Literal["bursts"] = "bursts"
    on_s: PositiveFloat
    off_s: PositiveFloat
    off_rate_req_s: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        if self.off_rate_req_s > self.rate_req_s:
            raise ValueError(
                f"off_rate_req_s {self.off_rate_req_s} is above rate_req_s {self.rate_req_s}: swap on and off"
            )
        return self

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Endless times in seconds, in blocks of `BLOCK`."""
        on_mass = self.rate_req_s * self.on_s
        period_mass = on_mass + self.off_rate_req_s * self.off_s
        for masses in renewal_blocks(EXPONENTIAL, rng):
            periods, rest = np.divmod(masses, period_mass)
            within = rest / self.rate_req_s
            if self.off_rate_req_s > 0:
                within = np.where(rest < on_mass, within, self.on_s + (rest - on_mass) / self.off_rate_req_s)
            yield periods * (self.on_s + self.off_s) + within
