"""The laws that BLIS's descriptions name: of lengths and counts, and of the gaps between arrivals (inference-sim, sim/workload)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from epdsim.workload.arrivals import EXPONENTIAL, MAX_CV, MIN_WEIBULL_SHAPE, GapLaw
from epdsim.workload.distributions import WeightedTable
from epdsim.workload.specs import MAX_INT, SpecModel

_NEEDED = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
    "empirical": (),
}


class BlisLengths(SpecModel):
    """A distribution of lengths or counts; every draw is at least 1, as in BLIS."""

    type: Literal["gaussian", "exponential", "pareto_lognormal", "constant", "empirical"]
    params: dict[str | int, float] = Field({})
    file: Literal[""] = ""

    @model_validator(mode="after")
    def _check(self) -> BlisLengths:
        missing = [name for name in _NEEDED[self.type] if name not in self.params]
        if missing:
            raise ValueError(f"{self.type} needs params.{missing[0]}")
        positive = [name for name in ("alpha", "xm") if self.params.get(name, 1.0) <= 0]
        if positive:
            raise ValueError(f"params.{positive[0]} must be above 0")
        negative = [name for name in ("mean", "std_dev", "sigma") if self.params.get(name, 0.0) < 0]
        if negative:
            raise ValueError(f"params.{negative[0]} is below 0")
        if self.params.get("min", 0) > self.params.get("max", math.inf):
            raise ValueError("params.min is above params.max")
        if self.type == "empirical":
            self._bins()
        return self

    def _bins(self) -> tuple[np.ndarray[Any, Any], WeightedTable]:
        wrong = [key for key in self.params if not str(key).isdecimal()]
        if wrong:
            raise ValueError(f"params.{wrong[0]}: the keys of empirical are numbers of tokens")
        bins = {int(key): weight for key, weight in self.params.items()}
        return np.fromiter(bins, dtype=np.float64), WeightedTable(tuple(bins.values()))

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """`count` draws."""
        given = self.params
        match self.type:
            case "constant":
                drawn = np.full(count, given["value"])
            case "gaussian":
                drawn = np.clip(rng.normal(given["mean"], given["std_dev"], count), given["min"], given["max"])
            case "exponential":
                drawn = rng.exponential(given["mean"], count)
            case "empirical":
                values, table = self._bins()
                drawn = values[table.draw(rng, count)]
            case "pareto_lognormal":
                is_pareto = rng.random(count) < given["mix_weight"]
                pareto = given["xm"] * np.exp(rng.standard_exponential(count) / given["alpha"])
                drawn = np.where(is_pareto, pareto, rng.lognormal(given["mu"], given["sigma"], count))
        whole: list[int] = np.clip(np.rint(drawn), 1, MAX_INT).astype(np.int64).tolist()
        return whole


class BlisArrival(SpecModel):
    """Gaps between a client's arrivals; their mean is that of its rate."""

    process: Literal["poisson", "gamma", "weibull", "constant"]
    cv: Annotated[float, Field(ge=0.01, le=MAX_CV)] | None = None
    shape: Annotated[float, Field(ge=0.01, le=1e4)] | None = None
    scale: PositiveFloat | None = None

    @property
    def law(self) -> GapLaw | None:
        """The law of the gaps; None for equal ones."""
        if self.process == "constant":
            return None
        if self.process == "poisson":
            return EXPONENTIAL
        if self.process == "gamma":
            return GapLaw("Gamma", self.shape or (self.cv or 1.0) ** -2)
        return GapLaw("Weibull", self.shape or _weibull_shape(self.cv or 1.0))


def _weibull_shape(cv: float) -> float:
    low, high = MIN_WEIBULL_SHAPE, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if GapLaw("Weibull", middle).cv > cv else (low, middle)
    return (low + high) / 2
